package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// object is one rendered object.
type object map[string]any

func (o object) text(path ...string) string {
	var value any = map[string]any(o)
	for _, step := range path {
		m, ok := value.(map[string]any)
		if !ok {
			return ""
		}
		value = m[step]
	}
	s, _ := value.(string)
	return s
}

func (o object) kind() string      { return o.text("kind") }
func (o object) name() string      { return o.text("metadata", "name") }
func (o object) namespace() string { return o.text("metadata", "namespace") }
func (o object) key() string       { return o.kind() + "/" + o.namespace() + "/" + o.name() }

// component is the component that the object belongs to, nil if it is the suite's.
func (o object) component() *component {
	labels, _ := o["metadata"].(map[string]any)["labels"].(map[string]any)
	for i := range components {
		if labels["app.kubernetes.io/name"] == components[i].name {
			return &components[i]
		}
	}
	return nil
}

// render builds a kustomization of folders of deploy.
func render(resources, withComponents []string) ([]object, error) {
	dir, err := os.MkdirTemp("", "kuperator-chart-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, err
	}
	deploy, err := filepath.Abs("deploy")
	if err != nil {
		return nil, err
	}
	if deploy, err = filepath.Rel(dir, deploy); err != nil { // a kustomization may name relative paths only
		return nil, err
	}
	content, err := yaml.Marshal(map[string][]string{"resources": under(deploy, resources),
		"components": under(deploy, withComponents)})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), content, 0o600); err != nil {
		return nil, err
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, fmt.Errorf("rendering %s: %w", strings.Join(append(resources, withComponents...), ", "), err)
	}
	var objects []object
	for _, resource := range built.Resources() {
		o, err := resource.Map()
		if err != nil {
			return nil, err
		}
		objects = append(objects, o)
	}
	return objects, nil
}

func under(dir string, names []string) []string {
	paths := make([]string, 0, len(names))
	for _, name := range names {
		paths = append(paths, filepath.Join(dir, name))
	}
	return paths
}
