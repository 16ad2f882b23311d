// Package archtest holds the import rules of the suite as a function over `go list`, so that no tool is needed to
// check them and a new component is covered the day it appears. The linters say the same at the line that breaks it.
package archtest

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Module is the path of the suite's Go module.
const Module = "kusionstack.io/kuperator"

// Package is what `go list -json` says about one package.
type Package struct {
	// ImportPath is the package's own path.
	ImportPath string
	// Imports are what its code imports, TestImports and XTestImports what its tests do.
	Imports, TestImports, XTestImports []string
}

// door is the one package of api that reaches into a component: it adds a platform's adapter to a manager. It counts as
// a part of that component, so no other component may import it.
const door, behindDoor = Module + "/api/resourceconsist/setup", "resourceconsist"

var (
	// shared may be imported by every component, forTests by its tests as well.
	shared = []string{"bootstrap", "callout", "decoration", "drain", "failures", "freeze", "freshness", "imagename",
		"livelist", "metric", "ondemand", "podcache", "remembered", "revision", "shorten", "soonest", "wake"}
	forTests = []string{"testkit"}
	// tools are what commands for people import: no components, and imported by none. Of a component they may use what
	// does no I/O, its decisions.
	tools = []string{"plugin", "dashboard"}
	// decisions are the packages that hold components' decisions.
	decisions = []string{
		"collaset/setplan", "lifecycle/podphase", "operationjob/jobplan", "poddecoration/decoplan",
		"podtransitionrule/asking/exchange", "podtransitionrule/grants", "resourceconsist/traffic", "shard/placement",
	}
	// lent are decisions that another component makes as well, by that component: webhook-server decorates a new Pod as
	// poddecoration-controller would have it.
	lent = map[string][]string{"webhook": {"poddecoration/decoplan"}}
	// pure are further packages that do no input or output. Beside api they may import what compares revisions, what
	// reads decorations and what decides how evicted Pods leave.
	pure = []string{"insight"}
	// effects are what a decision must not import: they, and what lies below them.
	effects = []string{"context", "crypto/rand", "io/fs", "log", "math/rand", "net", "os", "syscall"}
	// light is all that kinds, keys and decisions import from other modules.
	light = []string{"k8s.io/api", "k8s.io/apimachinery", "k8s.io/utils/ptr"}
	// forDecisions is what decisions may import of shared.
	forDecisions = []string{"decoration", "drain", "imagename", "shorten", "soonest"}
)

// Broken lists every import that breaks a rule, as a sentence each, in the order of packages. A component is what a
// command imports from internal, apart from the shared packages.
func Broken(packages []Package) []string {
	var broken []string
	components := componentsOf(packages)
	for _, p := range packages {
		for _, imported := range p.Imports {
			if why := codeRule(p.ImportPath, imported, components); why != "" {
				broken = append(broken, fmt.Sprintf("%s imports %s: %s", p.ImportPath, imported, why))
			}
		}
		for _, imported := range slices.Concat(p.TestImports, p.XTestImports) {
			if why := siblingRule(p.ImportPath, imported, components, slices.Concat(shared, forTests)); why != "" {
				broken = append(broken, fmt.Sprintf("a test of %s imports %s: %s", p.ImportPath, imported, why))
			}
		}
	}
	return broken
}

func codeRule(importer, imported string, components []string) string {
	api, isAPI := strings.CutPrefix(importer, Module+"/api/")
	isPure := slices.Contains(pure, internalName(importer))
	isDecision := isPure || api == "podops" || decides(importer)
	isTool := slices.Contains(tools, internalName(importer))
	switch {
	case isDecision && below(imported, effects):
		return "a decision does no input or output and reads no clock"
	case (isDecision || strings.HasPrefix(api, "apps/")) && isForeign(imported) && !below(imported, light):
		return "kinds and decisions import only the Kubernetes API"
	case isAPI && importer != door && internalName(imported) != "":
		return "api is imported by others and imports nothing internal"
	case isPure && internalName(imported) != "" &&
		!slices.Contains([]string{"decoration", "drain", "revision", internalName(importer)}, internalName(imported)):
		return "it imports, of internal, only revision, decoration and drain"
	case isDecision && !isPure && slices.Contains(shared, internalName(imported)) &&
		!slices.Contains(forDecisions, internalName(imported)):
		return "a decision imports only api"
	case isTool && slices.Contains(components, internalName(imported)) && !decides(imported):
		return "a tool imports, of a component, only its decisions"
	}
	return siblingRule(importer, imported, components, shared)
}

// decides reports whether a package holds the decisions of a component.
func decides(importPath string) bool {
	name, isInternal := strings.CutPrefix(importPath, Module+"/internal/")
	return isInternal && slices.Contains(decisions, name)
}

// siblingRule keeps components apart: of internal, a component imports itself and what is allowed.
func siblingRule(importer, imported string, components, allowed []string) string {
	own, other := internalName(importer), internalName(imported)
	switch {
	case !slices.Contains(components, own) || other == "" || other == own || slices.Contains(allowed, other):
		return ""
	case slices.Contains(lent[own], strings.TrimPrefix(imported, Module+"/internal/")):
		return ""
	case slices.Contains(components, other):
		return "components meet only in api/podops and the API"
	}
	return "a component imports, of internal, itself and " + strings.Join(allowed, ", ")
}

func componentsOf(packages []Package) []string {
	var components []string
	for _, p := range packages {
		if path.Dir(p.ImportPath) != Module+"/cmd" {
			continue
		}
		for _, imported := range p.Imports {
			if name := internalName(imported); name != "" && !slices.Contains(shared, name) && !slices.Contains(tools, name) {
				components = append(components, name)
			}
		}
	}
	return components
}

// internalName is "collaset" for the module's internal/collaset and everything below it, the component behind it for
// the door, and empty for other packages.
func internalName(importPath string) string {
	if importPath == door {
		return behindDoor
	}
	rest, ok := strings.CutPrefix(importPath, Module+"/internal/")
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, "/")
	return name
}

// isForeign reports whether a package belongs to another module than the suite's and to no part of the standard
// library.
func isForeign(importPath string) bool {
	first, _, _ := strings.Cut(importPath, "/")
	return strings.Contains(first, ".") && !below(importPath, []string{Module})
}

func below(importPath string, roots []string) bool {
	return slices.ContainsFunc(roots, func(root string) bool {
		return importPath == root || strings.HasPrefix(importPath, root+"/")
	})
}
