package monitoring

import "errors"

// File is a generated file.
type File struct {
	// Path is relative to the repository's root.
	Path    string
	Content []byte
}

// Files are all files that are generated from this package. Alerts link to runbooks below the given URL. The error
// names an invalid declaration.
func Files(runbookBase string) ([]File, error) {
	dashboards, dashboardErr := dashboardFiles()
	alerts, alertErr := alertFiles(runbookBase)
	files := []File{{"docs/reference/metrics.md", metricsPage()}}
	return append(append(files, dashboards...), alerts...), errors.Join(dashboardErr, alertErr)
}
