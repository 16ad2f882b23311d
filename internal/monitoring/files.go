package monitoring

import "errors"

// File is one that is generated.
type File struct {
	// Path is relative to the repository's root.
	Path    string
	Content []byte
}

// Files are all that is generated from this package; alerts link to runbooks below the given URL. The error names a
// declaration that makes no sense.
func Files(runbookBase string) ([]File, error) {
	dashboards, dashboardErr := dashboardFiles()
	alerts, alertErr := alertFiles(runbookBase)
	files := []File{{"docs/reference/metrics.md", metricsPage()}}
	return append(append(files, dashboards...), alerts...), errors.Join(dashboardErr, alertErr)
}
