package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// nonRoot is the user and group that deploy/ runs the programs as.
const nonRoot = "65532"

// image is a component for all platforms.
type image struct {
	component, version string
	index              v1.ImageIndex
	platforms          []platformImage
}

type platformImage struct {
	platform v1.Platform
	image    v1.Image
	sbom     []byte
}

// build compiles a component for each platform and makes images of it.
func (j *job) build(ctx context.Context, component, work string) (*image, error) {
	made := &image{component: component, version: j.version}
	annotations := j.annotations(component)
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, platform := range j.platforms {
		program, err := j.compile(ctx, component, platform, work)
		if err != nil {
			return nil, err
		}
		content, err := j.platformImage(program, component, platform)
		if err != nil {
			return nil, fmt.Errorf("image for %s: %w", platform, err)
		}
		sbom, err := j.sbom(program, component)
		if err != nil {
			return nil, fmt.Errorf("SBOM for %s: %w", platform, err)
		}
		made.platforms = append(made.platforms, platformImage{platform: platform, image: content, sbom: sbom})
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: content,
			Descriptor: v1.Descriptor{Platform: &platform}})
	}
	made.index = mutate.Annotations(index, annotations).(v1.ImageIndex)
	return made, nil
}

// annotations are those of the OCI image specification; the images carry them as labels too.
func (j *job) annotations(component string) map[string]string {
	all := map[string]string{
		"org.opencontainers.image.title":    component,
		"org.opencontainers.image.version":  j.version,
		"org.opencontainers.image.licenses": "Apache-2.0",
		"org.opencontainers.image.created":  j.created.Format(time.RFC3339),
	}
	if j.revision != "" {
		all["org.opencontainers.image.revision"] = j.revision
	}
	return all
}

// platformImage is one layer that all components share and one with the program.
func (j *job) platformImage(program, component string, platform v1.Platform) (v1.Image, error) {
	binary, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	licence, err := os.ReadFile(filepath.Join(j.root, "LICENSE"))
	if err != nil {
		return nil, err
	}
	base, err := layer(baseFiles())
	if err != nil {
		return nil, err
	}
	own, err := layer([]file{
		{name: "LICENSE", mode: 0o644, content: licence},
		{name: component, mode: 0o755, content: binary},
	})
	if err != nil {
		return nil, err
	}
	content, err := mutate.Append(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
		types.OCIConfigJSON),
		mutate.Addendum{Layer: base, MediaType: types.OCILayer,
			History: v1.History{CreatedBy: "certificate authorities, users", Created: v1.Time{Time: j.created}}},
		mutate.Addendum{Layer: own, MediaType: types.OCILayer,
			History: v1.History{CreatedBy: "go build ./cmd/" + component, Created: v1.Time{Time: j.created}}},
	)
	if err != nil {
		return nil, err
	}
	config, err := content.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant = platform.OS, platform.Architecture, platform.Variant
	config.Created = v1.Time{Time: j.created}
	config.Config = v1.Config{
		Entrypoint: []string{"/" + component},
		User:       nonRoot + ":" + nonRoot, // in numbers: a kubelet cannot tell otherwise that it is not root
		WorkingDir: "/",
		Labels:     j.annotations(component),
	}
	content, err = mutate.ConfigFile(content, config)
	if err != nil {
		return nil, err
	}
	return mutate.Annotations(content, j.annotations(component)).(v1.Image), nil
}

type file struct {
	name    string // without a leading slash; a folder ends in one
	mode    int64
	content []byte
}

// baseFiles is what a static program expects of a system: certificate authorities to trust and a name for its user.
// Time zones are not among them: nothing here names one.
func baseFiles() []file {
	return []file{
		{name: "etc/", mode: 0o755},
		{name: "etc/group", mode: 0o644, content: []byte("root:x:0:\nnonroot:x:" + nonRoot + ":\n")},
		{name: "etc/passwd", mode: 0o644, content: []byte("root:x:0:0:root:/:/sbin/nologin\nnonroot:x:" + nonRoot + ":" +
			nonRoot + ":nonroot:/:/sbin/nologin\n")},
		{name: "etc/ssl/", mode: 0o755},
		{name: "etc/ssl/certs/", mode: 0o755},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, content: authorities()},
	}
}

// authorities are Mozilla's, as the Go project publishes them. Those that Mozilla trusts in part only are left out: a
// file of certificates cannot say so.
func authorities() []byte {
	var all bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		all.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
	}
	return all.Bytes()
}

func layer(files []file) (v1.Layer, error) {
	packed, err := packTar(files)
	if err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(packed)), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
}

// packTar packs files in the order given, all root's and of 1970.
func packTar(files []file) ([]byte, error) {
	var packed bytes.Buffer
	out := tar.NewWriter(&packed)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), Typeflag: tar.TypeReg,
			ModTime: time.Unix(0, 0)}
		if f.name[len(f.name)-1] == '/' {
			header.Typeflag = tar.TypeDir
		}
		if err := out.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := out.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := out.Close(); err != nil {
		return nil, err
	}
	return packed.Bytes(), nil
}
