package realnode

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// Image is a container image of one static program and nothing else, or one that was built before.
type Image struct {
	// Archive is the path of an OCI archive that holds images with their names. If
	// it is not empty, nothing else of this is used.
	Archive string

	// Name is the whole name, registry and tag included. Pods use it with
	// imagePullPolicy Never.
	Name string
	// Program is the path of the static binary.
	Program string
	// Args are given to the program, unless the container has its own.
	Args []string
	// Env are NAME=value.
	Env []string
}

// pauseImage is what containerd holds a Pod's namespaces with.
const pauseImage = "kuperator.test/pause:1"

// BuildProgram builds a static program of this module, for example
// "./hack/webserver", into the folder dir.
func BuildProgram(ctx context.Context, root, pkg, dir string) (path string, err error) {
	path = filepath.Join(dir, filepath.Base(pkg))
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", path, pkg)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", pkg, err, bytes.TrimSpace(out))
	}
	return path, nil
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

const (
	mediaIndex    = "application/vnd.oci.image.index.v1+json"
	mediaManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaConfig   = "application/vnd.oci.image.config.v1+json"
	mediaLayer    = "application/vnd.oci.image.layer.v1.tar"
)

// archive is an OCI image layout, as a tar file holds it.
type archive struct {
	blobs map[string][]byte // by digest, without "sha256:"
	index []descriptor
}

func (a *archive) add(mediaType string, content []byte) descriptor {
	sum := sha256.Sum256(content)
	hash := hex.EncodeToString(sum[:])
	a.blobs[hash] = content
	return descriptor{MediaType: mediaType, Digest: "sha256:" + hash, Size: len(content)}
}

// writeImages writes the images that have no archive as one, fit for `ctr images import`.
func writeImages(to io.Writer, images ...Image) error {
	a := archive{blobs: map[string][]byte{}}
	for _, image := range images {
		if image.Archive != "" {
			continue
		}
		if err := a.addImage(image); err != nil {
			return fmt.Errorf("image %s: %w", image.Name, err)
		}
	}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": mediaIndex, "manifests": a.index})
	if err != nil {
		return err
	}
	files := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`), "index.json": index}
	for hash, content := range a.blobs {
		files["blobs/sha256/"+hash] = content
	}
	return writeTar(to, files, 0o644)
}

func (a *archive) addImage(image Image) error {
	program, err := os.ReadFile(image.Program)
	if err != nil {
		return err
	}
	entrypoint := "/" + filepath.Base(image.Program)
	var layer bytes.Buffer
	if err := writeTar(&layer, map[string][]byte{entrypoint[1:]: program}, 0o755); err != nil {
		return err
	}
	packed := a.add(mediaLayer, layer.Bytes())
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": append([]string{entrypoint}, image.Args...), "Env": image.Env},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{packed.Digest}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": mediaManifest, "config": a.add(mediaConfig, config), "layers": []descriptor{packed},
	})
	if err != nil {
		return err
	}
	entry := a.add(mediaManifest, manifest)
	// By its digest too, as if it had been pulled.
	repository := image.Name[:strings.LastIndex(image.Name, ":")]
	for _, name := range []string{image.Name, repository + "@" + entry.Digest} {
		entry.Annotations = map[string]string{"io.containerd.image.name": name}
		a.index = append(a.index, entry)
	}
	return nil
}

func writeTar(to io.Writer, files map[string][]byte, mode int64) error {
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	out := tar.NewWriter(to)
	for _, name := range names {
		if err := out.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(files[name])),
			Typeflag: tar.TypeReg}); err != nil {
			return err
		}
		if _, err := out.Write(files[name]); err != nil {
			return err
		}
	}
	return out.Close()
}
