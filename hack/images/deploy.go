package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// imagePrefix is how the manifests of deploy/ call the images before an overlay names a registry.
const imagePrefix = "kuperator/"

// kustomization is the part of a kustomization.yaml that is about images.
type kustomization struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Images     []replaceImage `json:"images"`
}

type replaceImage struct {
	Name    string `json:"name"`
	NewName string `json:"newName,omitempty"`
	NewTag  string `json:"newTag,omitempty"`
	Digest  string `json:"digest,omitempty"`
}

// installedImages are the components that deploy/ has a base of, with the tag that it installs.
func installedImages(root string) (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(root, "deploy", "*", "kustomization.yaml"))
	if err != nil {
		return nil, err
	}
	tags := map[string]string{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var base kustomization
		if err := yaml.Unmarshal(content, &base); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, image := range base.Images {
			component, ours := strings.CutPrefix(image.Name, imagePrefix)
			if ours && component == filepath.Base(filepath.Dir(file)) {
				tags[component] = image.NewTag
			}
		}
	}
	if len(tags) == 0 {
		return nil, errors.New("no deploy/*/kustomization.yaml names an image: is -root the folder of the project?")
	}
	return tags, nil
}

// pinned is an image in a registry.
type pinned struct {
	component, repository, digest string
}

// writePins writes a kustomize component that puts these images, by digest, in the place of those that deploy/ names.
func writePins(path string, images []pinned) error {
	pins := kustomization{APIVersion: "kustomize.config.k8s.io/v1alpha1", Kind: "Component"}
	for _, image := range images {
		pins.Images = append(pins.Images, replaceImage{Name: imagePrefix + image.component, NewName: image.repository,
			Digest: image.digest})
	}
	content, err := yaml.Marshal(pins)
	if err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o644)
}

func parseEpoch(text string) (time.Time, error) {
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seconds < 0 {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH=%q is not a number of seconds since 1970", text)
	}
	return time.Unix(seconds, 0).UTC(), nil
}
