package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"kusionstack.io/kuperator/internal/monitoring"
)

// imagePrefix is how the manifests of deploy/ call the images.
const imagePrefix = unpublished + "/"

// images are those that deploy/ has a base of, as kustomizations name them.
func (r release) images() ([]types.Image, error) {
	bases, err := filepath.Glob(filepath.Join(r.root, "deploy", "*", "kustomization.yaml"))
	if err != nil {
		return nil, err
	}
	var all []types.Image
	for _, base := range bases {
		content, err := os.ReadFile(base)
		if err != nil {
			return nil, err
		}
		var k types.Kustomization
		if err := yaml.Unmarshal(content, &k); err != nil {
			return nil, fmt.Errorf("%s: %w", base, err)
		}
		for _, image := range k.Images {
			if strings.HasPrefix(image.Name, imagePrefix) {
				all = append(all, image)
			}
		}
	}
	return all, nil
}

// installedVersion is the tag that deploy/ gives all images.
func (r release) installedVersion() (string, error) {
	images, err := r.images()
	if err != nil {
		return "", err
	}
	version := ""
	for _, image := range images {
		if version != "" && image.NewTag != version {
			return "", fmt.Errorf("deploy/ installs %s and %s: say which one is meant with -version", version, image.NewTag)
		}
		version = image.NewTag
	}
	return version, nil
}

// manifests writes one file for what outlives the controllers, one for each overlay, and one for each part of the
// monitoring.
func (r release) manifests() error {
	overlays, err := os.ReadDir(filepath.Join(r.root, "deploy", "overlays"))
	if err != nil {
		return err
	}
	folders := map[string]string{
		"prerequisites.yaml":       "prerequisites",
		"prometheus-operator.yaml": "components/prometheus-operator",
		"grafana-dashboards.yaml":  "components/grafana-dashboards",
	}
	for _, overlay := range overlays {
		folders["install-"+overlay.Name()+".yaml"] = "overlays/" + overlay.Name()
	}
	images, err := r.images()
	if err != nil {
		return err
	}
	for i := range images {
		images[i].NewName = r.repository + "/" + strings.TrimPrefix(images[i].Name, imagePrefix)
		images[i].NewTag = r.version
	}
	for name, folder := range folders {
		content, err := r.render(folder, images)
		if err != nil {
			return fmt.Errorf("deploy/%s: %w", folder, err)
		}
		content = strings.ReplaceAll(content, monitoring.RunbookBase, r.runbooks())
		if err := r.write(name, []byte(content)); err != nil {
			return err
		}
	}
	return nil
}

// render builds a folder of deploy/ with these images.
func (r release) render(folder string, images []types.Image) (string, error) {
	dir, err := os.MkdirTemp("", "kuperator-release-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return "", err
	}
	path, err := filepath.Abs(filepath.Join(r.root, "deploy", folder))
	if err != nil {
		return "", err
	}
	if path, err = filepath.Rel(dir, path); err != nil { // a kustomization may name relative paths only
		return "", err
	}
	k := types.Kustomization{Images: images}
	if strings.HasPrefix(folder, "components/") {
		k.Components = []string{path}
	} else {
		k.Resources = []string{path}
	}
	content, err := yaml.Marshal(k)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), content, 0o600); err != nil {
		return "", err
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return "", err
	}
	text, err := built.AsYaml()
	return string(text), err
}
