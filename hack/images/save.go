package main

import (
	"archive/tar"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// save writes the image as an OCI layout in a tar file, <component>.tar, and an SBOM for each platform beside it,
// <component>.<platform>.cdx.json. Loaded from there it is called <repository>/<component>:<version>.
func (i *image) save(into, repository string) error {
	fullName, err := containerdName(repository + "/" + i.component + ":" + i.version)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(into, "."+i.component+"-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	names := map[string]string{
		// skopeo, crane, podman
		"org.opencontainers.image.ref.name": i.version,
		// containerd writes names in full
		"io.containerd.image.name": fullName,
	}
	if err := path.AppendIndex(i.index, layout.WithAnnotations(names)); err != nil {
		return err
	}
	if err := tarFolder(dir, filepath.Join(into, i.component+".tar")); err != nil {
		return err
	}
	for _, p := range i.platforms {
		if err := os.WriteFile(filepath.Join(into, i.component+"."+fileName(p.platform)+".cdx.json"), p.sbom,
			0o644); err != nil {
			return err
		}
	}
	return nil
}

// containerdName is an image's name with its registry, which containerd calls otherwise than Docker if none is named.
func containerdName(short string) (string, error) {
	tag, err := name.NewTag(short)
	if err != nil {
		return "", err
	}
	registry := tag.RegistryStr()
	if registry == name.DefaultRegistry {
		registry = "docker.io"
	}
	return registry + "/" + tag.RepositoryStr() + ":" + tag.TagStr(), nil
}

// tarFolder packs a folder's content, in the order of names and all of 1970.
func tarFolder(dir, target string) (err error) {
	packed, err := os.Create(target)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := packed.Close(); err == nil {
			err = closeErr
		}
	}()
	out := tar.NewWriter(packed)
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		header := &tar.Header{Name: filepath.ToSlash(name), Mode: 0o644, Size: int64(len(content)), Typeflag: tar.TypeReg,
			ModTime: time.Unix(0, 0)}
		if err := out.WriteHeader(header); err != nil {
			return err
		}
		_, err = out.Write(content)
		return err
	})
	if err != nil {
		return err
	}
	return out.Close()
}
