// Package argocd runs Argo CD's customizations of resources as Argo CD does: Lua scripts of its ConfigMap, in a machine
// with the few libraries that it opens for them.
package argocd

import (
	"errors"
	"fmt"
	"os"
	"strings"

	lua "github.com/yuin/gopher-lua"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"kusionstack.io/kuperator/internal/testkit/luascript"
)

// Customizations are what a ConfigMap argocd-cm says about kinds.
type Customizations struct {
	data map[string]string
}

// Load reads the ConfigMap in a file.
func Load(file string) (*Customizations, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	config := corev1.ConfigMap{}
	if err := yaml.UnmarshalStrict(text, &config); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return &Customizations{config.Data}, nil
}

// Health is what Argo CD shows of an object: Healthy, Progressing, Suspended or Degraded, and a message.
func (c *Customizations) Health(object *unstructured.Unstructured) (status, message string, err error) {
	script, ok := c.data["resource.customizations.health."+nameOf(object)]
	if !ok {
		return "", "", fmt.Errorf("no health script for %s", nameOf(object))
	}
	value, err := run(script, object)
	if err != nil {
		return "", "", err
	}
	answer, ok := value.(map[string]any)
	if !ok {
		return "", "", fmt.Errorf("the health script of %s returned %v", nameOf(object), value)
	}
	status, _ = answer["status"].(string)
	message, _ = answer["message"].(string)
	return status, message, nil
}

// actions is a value of resource.customizations.actions.
type actions struct {
	Discovery   string `json:"discovery.lua"`
	Definitions []struct {
		Name   string `json:"name"`
		Action string `json:"action.lua"`
	} `json:"definitions"`
}

func (c *Customizations) actions(object *unstructured.Unstructured) (actions, error) {
	a := actions{}
	return a, yaml.UnmarshalStrict([]byte(c.data["resource.customizations.actions."+nameOf(object)]), &a)
}

// Actions are the names of the actions that Argo CD offers on an object, and whether each can be chosen now.
func (c *Customizations) Actions(object *unstructured.Unstructured) (map[string]bool, error) {
	a, err := c.actions(object)
	if err != nil {
		return nil, err
	}
	value, err := run(a.Discovery, object)
	if err != nil {
		return nil, err
	}
	offered := map[string]bool{}
	found, _ := value.(map[string]any)
	for name, about := range found {
		fields, _ := about.(map[string]any)
		disabled, _ := fields["disabled"].(bool)
		offered[name] = !disabled
	}
	return offered, nil
}

// Run is the object as an action would have it.
func (c *Customizations) Run(action string, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	a, err := c.actions(object)
	if err != nil {
		return nil, err
	}
	for _, d := range a.Definitions {
		if d.Name != action {
			continue
		}
		value, err := run(d.Action, object)
		if err != nil {
			return nil, err
		}
		changed, ok := value.(map[string]any)
		if !ok {
			return nil, errors.New("the action did not return an object")
		}
		return &unstructured.Unstructured{Object: changed}, nil
	}
	return nil, fmt.Errorf("no action %s for %s", action, nameOf(object))
}

func nameOf(object *unstructured.Unstructured) string {
	kind := object.GroupVersionKind()
	return kind.Group + "_" + kind.Kind
}

// run gives what a script returns for the global obj.
func run(script string, object *unstructured.Unstructured) (any, error) {
	machine, err := luascript.New(lua.BaseLibName, lua.TabLibName, lua.OsLibName)
	if err != nil {
		return nil, err
	}
	defer machine.Close()
	machine.SetGlobal("obj", luascript.ToLua(machine, object.Object))
	if err := machine.DoString(script); err != nil {
		return nil, fmt.Errorf("%s\n%w", strings.TrimSpace(script), err)
	}
	return luascript.FromLua(machine.Get(-1), object.Object), nil
}
