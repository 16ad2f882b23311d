// Command gitops packs scripts for what delivers our kinds.
//
//	gitops argo-cd FOLDER > argocd-cm.yaml
//	gitops karmada FOLDER > interpreters.yaml
//
// For Argo CD the scripts are below GROUP/KIND, laid out as in its own resource_customizations. For Karmada they are
// for every kind, and in KIND for that kind alone.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

func main() {
	pack := map[string]func(string) ([]byte, error){"argo-cd": argoCD, "karmada": karmada}
	if len(os.Args) != 3 || pack[os.Args[1]] == nil {
		fail(fmt.Errorf("usage: gitops argo-cd|karmada FOLDER"))
	}
	packed, err := pack[os.Args[1]](os.Args[2])
	if err != nil {
		fail(err)
	}
	fmt.Printf("# Made by make generate from the scripts beside this file.\n%s", packed)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "gitops:", err)
	os.Exit(1)
}

// argoCD is the ConfigMap from which Argo CD reads what it is told about kinds.
func argoCD(root string) ([]byte, error) {
	data, err := customizations(root)
	if err != nil {
		return nil, err
	}
	return yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "argocd-cm"}, "data": data,
	})
}

// interpretations are the files of scripts, by the field of Karmada's ResourceInterpreterCustomization that has them.
var interpretations = map[string]string{
	"healthInterpretation": "health.lua", "statusReflection": "reflect.lua", "statusAggregation": "aggregate.lua",
	"replicaResource": "replicas.lua", "replicaRevision": "revise.lua", "retention": "retain.lua",
	"dependencyInterpretation": "dependencies.lua",
}

// karmada is a ResourceInterpreterCustomization for each kind.
func karmada(root string) ([]byte, error) {
	var all [][]byte
	for _, kind := range []string{"CollaSet", "OperationJob", "PodDecoration", "PodTransitionRule"} {
		scripts := map[string]any{}
		for field, file := range interpretations {
			for _, folder := range []string{root, filepath.Join(root, kind)} {
				text, err := read(filepath.Join(folder, file))
				if os.IsNotExist(err) {
					continue
				}
				if err != nil {
					return nil, err
				}
				scripts[field] = map[string]any{"luaScript": text}
			}
		}
		packed, err := yaml.Marshal(map[string]any{
			"apiVersion": "config.karmada.io/v1alpha1", "kind": "ResourceInterpreterCustomization",
			"metadata": map[string]any{"name": "kuperator-" + strings.ToLower(kind)},
			"spec": map[string]any{
				"target":         map[string]any{"apiVersion": "apps.kusionstack.io/v1alpha1", "kind": kind},
				"customizations": scripts,
			},
		})
		if err != nil {
			return nil, err
		}
		all = append(all, packed)
	}
	return bytes.Join(all, []byte("---\n")), nil
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
