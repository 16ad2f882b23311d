package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"kusionstack.io/kuperator/internal/monitoring"
)

const chartName = "kuperator"

// chartFile is what helm package would call it.
func (r release) chartFile() string { return chartName + "-" + withoutV(r.version) + ".tgz" }

// withoutV is a version as Helm writes it.
func withoutV(version string) string { return strings.TrimPrefix(version, "v") }

// chart packs deploy/charts with the version, the repository and the runbooks as defaults.
func (r release) chart() error {
	installed, err := r.installedVersion()
	if err != nil {
		return err
	}
	edits := map[string][][2]string{
		"Chart.yaml": {
			{"\nversion: " + withoutV(installed) + "\n", "\nversion: " + withoutV(r.version) + "\n"},
			{"\nappVersion: " + installed + "\n", "\nappVersion: " + r.version + "\n"},
		},
		"values.yaml": {
			{"\n  repository: " + unpublished + "\n", "\n  repository: " + r.repository + "\n"},
			{"\n  runbooks: " + monitoring.RunbookBase + "\n", "\n  runbooks: " + r.runbooks() + "\n"},
		},
	}
	if r.docs != "" {
		edits["Chart.yaml"] = append(edits["Chart.yaml"], [2]string{"\nkubeVersion:", "\nhome: " + r.docs + "\nkubeVersion:"})
	}
	files := os.DirFS(filepath.Join(r.root, "deploy", "charts", chartName))
	var packed bytes.Buffer
	compressed := gzip.NewWriter(&packed)
	out := tar.NewWriter(compressed)
	err = fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error { // in the order of names
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		text, err := edit(string(content), edits[name])
		if err != nil {
			return fmt.Errorf("%s of the chart: %w", name, err)
		}
		header := &tar.Header{Name: path.Join(chartName, name), Mode: 0o644, Size: int64(len(text)),
			Typeflag: tar.TypeReg, ModTime: time.Unix(0, 0)}
		if err := out.WriteHeader(header); err != nil {
			return err
		}
		_, err = out.Write([]byte(text))
		return err
	})
	if err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	if err := compressed.Close(); err != nil {
		return err
	}
	return r.write(r.chartFile(), packed.Bytes())
}

// edit replaces texts that have to occur once.
func edit(text string, replacements [][2]string) (string, error) {
	for _, pair := range replacements {
		if strings.Count(text, pair[0]) != 1 {
			return "", fmt.Errorf("%q is not in it once", pair[0])
		}
		text = strings.Replace(text, pair[0], pair[1], 1)
	}
	return text, nil
}
