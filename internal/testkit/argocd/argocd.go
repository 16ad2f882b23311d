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
	machine := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer machine.Close()
	for name, open := range map[string]lua.LGFunction{lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable,
		lua.OsLibName: openSafeOS} {
		if err := machine.CallByParam(lua.P{Fn: machine.NewFunction(open), Protect: true}, lua.LString(name)); err != nil {
			return nil, err
		}
	}
	machine.SetGlobal("obj", toLua(machine, object.Object))
	if err := machine.DoString(script); err != nil {
		return nil, fmt.Errorf("%s\n%w", strings.TrimSpace(script), err)
	}
	return fromLua(machine.Get(-1), object.Object), nil
}

// openSafeOS opens what Argo CD leaves of the library os: the time.
func openSafeOS(machine *lua.LState) int {
	lua.OpenOs(machine)
	library := machine.GetGlobal(lua.OsLibName).(*lua.LTable)
	var names []string
	library.ForEach(func(name, _ lua.LValue) { names = append(names, name.String()) })
	for _, name := range names {
		if name != "time" && name != "date" {
			library.RawSetString(name, lua.LNil)
		}
	}
	return 0
}

func toLua(machine *lua.LState, value any) lua.LValue {
	switch v := value.(type) {
	case bool:
		return lua.LBool(v)
	case int64:
		return lua.LNumber(v)
	case float64:
		return lua.LNumber(v)
	case string:
		return lua.LString(v)
	case []any:
		table := machine.NewTable()
		for _, item := range v {
			table.Append(toLua(machine, item))
		}
		return table
	case map[string]any:
		table := machine.NewTable()
		for key, item := range v {
			table.RawSetString(key, toLua(machine, item))
		}
		return table
	}
	return lua.LNil
}

// fromLua reads a value back. was is what stood there before: Lua knows neither whole numbers nor whether an empty
// table is a list.
func fromLua(value lua.LValue, was any) any {
	switch v := value.(type) {
	case lua.LBool:
		return bool(v)
	case lua.LNumber:
		if whole := int64(v); lua.LNumber(whole) == v {
			return whole
		}
		return float64(v)
	case lua.LString:
		return string(v)
	case *lua.LTable:
		before, isMap := was.(map[string]any)
		list, isList := was.([]any)
		if v.Len() > 0 || isList && !isMap {
			items := make([]any, 0, v.Len())
			for i := 1; i <= v.Len(); i++ {
				var old any
				if i <= len(list) {
					old = list[i-1]
				}
				items = append(items, fromLua(v.RawGetInt(i), old))
			}
			return items
		}
		fields := map[string]any{}
		v.ForEach(func(key, item lua.LValue) { fields[key.String()] = fromLua(item, before[key.String()]) })
		return fields
	}
	return nil
}
