// Package karmada runs ResourceInterpreterCustomizations as Karmada does: it loads a script, and calls the function
// whose name Karmada gives to the field that the script is in.
package karmada

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/util/yaml"

	"kusionstack.io/kuperator/internal/testkit/luascript"
)

// Interpreters are scripts by kind and field.
type Interpreters map[string]map[string]Script

// Script is the value of a field.
type Script struct {
	LuaScript string `json:"luaScript"`
}

// functions are what Karmada calls, by the field.
var functions = map[string]string{
	"healthInterpretation": "InterpretHealth", "statusReflection": "ReflectStatus",
	"statusAggregation": "AggregateStatus", "replicaResource": "GetReplicas", "replicaRevision": "ReviseReplica",
	"retention": "Retain", "dependencyInterpretation": "GetDependencies",
}

// Load reads the ResourceInterpreterCustomizations in a file.
func Load(file string) (Interpreters, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	all := Interpreters{}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		var c struct {
			Spec struct {
				Target         struct{ Kind string }
				Customizations map[string]Script
			}
		}
		if err := documents.Decode(&c); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all[c.Spec.Target.Kind] = c.Spec.Customizations
	}
}

// Call gives the first value that the script of a field returns for these values of JSON. What Karmada's library kube
// would find in a Pod template is the template itself here.
func (i Interpreters) Call(kind, field string, values ...any) (any, error) {
	script, ok := i[kind][field]
	if !ok {
		return nil, fmt.Errorf("%s has no %s", kind, field)
	}
	machine, err := luascript.New(lua.LoadLibName, lua.BaseLibName, lua.TabLibName, lua.StringLibName, lua.MathLibName,
		lua.OsLibName)
	if err != nil {
		return nil, err
	}
	defer machine.Close()
	machine.PreloadModule("kube", func(l *lua.LState) int {
		given := func(l *lua.LState) int { l.Push(l.Get(1)); return 1 }
		l.Push(l.SetFuncs(l.NewTable(), map[string]lua.LGFunction{
			"accuratePodRequirements": given, "getPodDependencies": given,
		}))
		return 1
	})
	if err := machine.DoString(script.LuaScript); err != nil {
		return nil, err
	}
	arguments := make([]lua.LValue, len(values))
	for n, value := range values {
		arguments[n] = luascript.ToLua(machine, value)
	}
	called := lua.P{Fn: machine.GetGlobal(functions[field]), NRet: 1, Protect: true}
	if err := machine.CallByParam(called, arguments...); err != nil {
		return nil, err
	}
	return luascript.FromLua(machine.Get(-1), values[0]), nil
}
