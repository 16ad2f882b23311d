package main

import (
	"bytes"
	_ "embed" // the page
	"text/template"
)

//go:embed README.md.tmpl
var readmeText string

var readmeTemplate = template.Must(template.New("README.md").Parse(readmeText))

// readme is the page of the folder.
func (r release) readme() []byte {
	var page bytes.Buffer
	err := readmeTemplate.Execute(&page, map[string]any{
		"Version": r.version, "Repository": r.repository, "Download": r.download, "Chart": r.chartFile(), "Docs": r.docs,
		"Published": r.repository != unpublished,
	})
	if err != nil {
		panic(err) // the template is ours, and so is what it is filled with
	}
	return page.Bytes()
}
