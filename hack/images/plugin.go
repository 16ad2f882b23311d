package main

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// pluginName is the program of cmd/ that users have on their own machines.
const pluginName = "kubectl-kuperator"

// completionScript is what kubectl asks for completions of the plugin's words. It needs a shell.
const completionScript = "kubectl_complete-kuperator"

var pluginPlatforms = []v1.Platform{
	{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64"},
	{OS: "darwin", Architecture: "amd64"}, {OS: "darwin", Architecture: "arm64"},
	{OS: "windows", Architecture: "amd64"},
}

// packPlugin writes an archive of the plugin for each platform, kubectl-kuperator_<os>_<architecture>.tar.gz or .zip,
// and its SBOM.
func (j *job) packPlugin(ctx context.Context, work string, progress io.Writer) error {
	licence, err := os.ReadFile(filepath.Join(j.root, "LICENSE"))
	if err != nil {
		return err
	}
	completion, err := os.ReadFile(filepath.Join(j.root, "cmd", pluginName, completionScript))
	if err != nil {
		return err
	}
	for _, platform := range pluginPlatforms {
		program, err := j.compile(ctx, pluginName, platform, work)
		if err != nil {
			return err
		}
		binary, err := os.ReadFile(program)
		if err != nil {
			return err
		}
		sbom, err := j.sbom(program, pluginName)
		if err != nil {
			return fmt.Errorf("SBOM for %s: %w", platform, err)
		}
		path := filepath.Join(j.out, pluginName+"_"+platform.OS+"_"+platform.Architecture)
		files := []file{{name: "LICENSE", mode: 0o644, content: licence}}
		pack := packTarGz
		if platform.OS == "windows" {
			pack = packZip
			path += ".zip"
			files = append(files, file{name: pluginName + ".exe", mode: 0o755, content: binary})
		} else {
			path += ".tar.gz"
			files = append(files, file{name: pluginName, mode: 0o755, content: binary},
				file{name: completionScript, mode: 0o755, content: completion})
		}
		packed, err := pack(files)
		if err != nil {
			return err
		}
		if err := os.WriteFile(path, packed, 0o644); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(j.out, pluginName+"."+fileName(platform)+".cdx.json"), sbom,
			0o644); err != nil {
			return err
		}
		fmt.Fprintln(progress, path)
	}
	return nil
}

func packTarGz(files []file) ([]byte, error) {
	plain, err := packTar(files)
	if err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	out := gzip.NewWriter(&packed)
	if _, err := out.Write(plain); err != nil {
		return nil, err
	}
	if err := out.Close(); err != nil {
		return nil, err
	}
	return packed.Bytes(), nil
}

// packZip packs files in the order given, all of 1980, before which the format has no time.
func packZip(files []file) ([]byte, error) {
	var packed bytes.Buffer
	out := zip.NewWriter(&packed)
	for _, f := range files {
		header := &zip.FileHeader{Name: f.name, Method: zip.Deflate,
			Modified: time.Date(1980, time.January, 1, 0, 0, 0, 0, time.UTC)}
		header.SetMode(os.FileMode(f.mode))
		into, err := out.CreateHeader(header)
		if err != nil {
			return nil, err
		}
		if _, err := into.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := out.Close(); err != nil {
		return nil, err
	}
	return packed.Bytes(), nil
}
