// Package luascript runs the Lua scripts that tools are given about our kinds.
package luascript

import (
	"fmt"

	lua "github.com/yuin/gopher-lua"
)

var libraries = map[string]lua.LGFunction{
	lua.LoadLibName: lua.OpenPackage, lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable,
	lua.StringLibName: lua.OpenString, lua.MathLibName: lua.OpenMath, lua.OsLibName: openSafeOS,
}

// New is a machine with these libraries and no others. Close it.
func New(names ...string) (*lua.LState, error) {
	machine := lua.NewState(lua.Options{SkipOpenLibs: true})
	for _, name := range names {
		open := lua.P{Fn: machine.NewFunction(libraries[name]), Protect: true}
		if err := machine.CallByParam(open, lua.LString(name)); err != nil {
			machine.Close()
			return nil, fmt.Errorf("opening the library %q: %w", name, err)
		}
	}
	return machine, nil
}

// openSafeOS opens what is left of the library os: the time.
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

// ToLua is a value of JSON as Lua has it.
func ToLua(machine *lua.LState, value any) lua.LValue {
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
			table.Append(ToLua(machine, item))
		}
		return table
	case map[string]any:
		table := machine.NewTable()
		for key, item := range v {
			table.RawSetString(key, ToLua(machine, item))
		}
		return table
	}
	return lua.LNil
}

// FromLua reads a value back. was is what stood there before: Lua knows neither whole numbers nor whether an empty
// table is a list.
func FromLua(value lua.LValue, was any) any {
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
				items = append(items, FromLua(v.RawGetInt(i), old))
			}
			return items
		}
		fields := map[string]any{}
		v.ForEach(func(key, item lua.LValue) { fields[key.String()] = FromLua(item, before[key.String()]) })
		return fields
	}
	return nil
}
