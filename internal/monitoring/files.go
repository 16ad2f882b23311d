package monitoring

// File is one that is generated.
type File struct {
	// Path is relative to the repository's root.
	Path    string
	Content []byte
}

// Files are all that is generated from this package. The error names a declaration that makes no sense.
func Files() ([]File, error) {
	return []File{{"docs/reference/metrics.md", metricsPage()}}, nil
}
