// Command gitops packs the scripts below a folder GROUP/KIND, laid out as in Argo CD's own resource_customizations,
// into the ConfigMap that Argo CD reads them from.
//
//	gitops FOLDER > argocd-cm.yaml
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

func main() {
	if len(os.Args) != 2 {
		fail(fmt.Errorf("usage: gitops FOLDER"))
	}
	if err := write(os.Stdout, os.Args[1]); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "gitops:", err)
	os.Exit(1)
}

func write(to io.Writer, root string) error {
	data, err := customizations(root)
	if err != nil {
		return err
	}
	packed, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "argocd-cm"}, "data": data,
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(to, "# Made by make generate from the scripts beside this file.\n%s", packed)
	return err
}

// customizations are the values of the ConfigMap by its keys: resource.customizations.health.GROUP_KIND and
// resource.customizations.actions.GROUP_KIND.
func customizations(root string) (map[string]string, error) {
	data := map[string]string{}
	scripts, err := filepath.Glob(filepath.Join(root, "*", "*", "health.lua"))
	if err != nil {
		return nil, err
	}
	for _, script := range scripts {
		kind := filepath.Dir(script)
		name := filepath.Base(filepath.Dir(kind)) + "_" + filepath.Base(kind)
		if data["resource.customizations.health."+name], err = read(script); err != nil {
			return nil, err
		}
		actions, err := actionsOf(filepath.Join(kind, "actions"))
		if err != nil {
			return nil, err
		}
		if actions != "" {
			data["resource.customizations.actions."+name] = actions
		}
	}
	return data, nil
}

// definition is one action.
type definition struct {
	Name   string `json:"name"`
	Action string `json:"action.lua"`
}

// actionsOf packs discovery.lua and each NAME/action.lua of a folder; "" if it has none.
func actionsOf(folder string) (string, error) {
	scripts, err := filepath.Glob(filepath.Join(folder, "*", "action.lua"))
	if err != nil || len(scripts) == 0 {
		return "", err
	}
	slices.Sort(scripts)
	var definitions []definition
	for _, script := range scripts {
		text, err := read(script)
		if err != nil {
			return "", err
		}
		definitions = append(definitions, definition{Name: filepath.Base(filepath.Dir(script)), Action: text})
	}
	discovery, err := read(filepath.Join(folder, "discovery.lua"))
	if err != nil {
		return "", err
	}
	packed, err := yaml.Marshal(map[string]any{"discovery.lua": discovery, "definitions": definitions})
	return string(packed), err
}

func read(file string) (string, error) {
	text, err := os.ReadFile(file)
	return strings.TrimRight(string(text), "\n") + "\n", err
}
