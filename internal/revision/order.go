package revision

import (
	"bytes"
	"encoding/json"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// unordered are the lists in a Pod or a claim that mean the same in any order, by the name of their field, with what
// must hold of a list for that. What is not here is in order: containers are started one after the other; of envFrom
// and of the sources of a projected volume the last counts, of the names in hostAliases the first; arguments,
// nameservers, search paths, header fields and rules about exit codes are read from first to last.
var unordered = map[string]func([]any) bool{
	// Sets of things with names, which are looked up by these.
	"volumes":          always,
	"volumeDevices":    always,
	"resourceClaims":   always,
	"claims":           always, // of a container: names of resourceClaims
	"schedulingGates":  always,
	"readinessGates":   always,
	"resizePolicy":     always,
	"sysctls":          always,
	"imagePullSecrets": always, // all that fit a registry are tried
	"ports":            always, // a name or a number is in a container once
	// Sets of plain values.
	"add":                always, // capabilities
	"drop":               always,
	"supplementalGroups": always,
	"accessModes":        always,
	"namespaces":         always,
	"matchLabelKeys":     always,
	"mismatchLabelKeys":  always,
	"values":             always, // of a requirement of a selector
	// Conditions of which all must hold, or any, or each of which adds to a score.
	"topologySpreadConstraints": always,
	"matchExpressions":          always,
	"matchFields":               always,
	"nodeSelectorTerms":         always,
	"requiredDuringSchedulingIgnoredDuringExecution":  always,
	"preferredDuringSchedulingIgnoredDuringExecution": always,
	// Order shows only where two of a list are about the same thing.
	"tolerations": func(list []any) bool {
		var tolerations []corev1.Toleration
		convert(list, &tolerations)
		return noTaintTwice(tolerations)
	},
	"env":          noReference,
	"volumeMounts": noPathInAnother,
	"items":        noPathTwice,
}

func always([]any) bool { return true }

// settle puts the lists below a value in normal form into one order, and drops variables that a later one hides.
func settle(value any) {
	switch v := value.(type) {
	case map[string]any:
		for key, child := range v {
			settle(child)
			list, ok := child.([]any)
			if free := unordered[key]; ok && free != nil && free(list) {
				if key == "env" {
					list = lastOfEachName(list)
				}
				v[key] = inOrder(list)
			}
		}
	case []any:
		for _, child := range v {
			settle(child)
		}
	}
}

// inOrder sorts by what items say, in place. Equal lists of any order become the same.
func inOrder(list []any) []any {
	text := make(map[int][]byte, len(list))
	order := make([]int, len(list))
	for i, item := range list {
		raw, err := json.Marshal(item)
		if err != nil {
			panic(err) // it was read from JSON
		}
		text[i], order[i] = raw, i
	}
	slices.SortStableFunc(order, func(a, b int) int { return bytes.Compare(text[a], text[b]) })
	out := make([]any, len(list))
	for to, from := range order {
		out[to] = list[from]
	}
	return out
}

// noReference reports whether no variable's value names another of the list: one must come after those that it names.
// Where none does, a variable is what the last of its name says.
func noReference(env []any) bool {
	variables := objects(env)
	for _, v := range variables {
		text, _ := v["value"].(string)
		if strings.Contains(text, "$(") && slices.ContainsFunc(variables, func(other map[string]any) bool {
			return strings.Contains(text, "$("+nameOf(other)+")")
		}) {
			return false
		}
	}
	return true
}

func lastOfEachName(env []any) []any {
	last := map[string]int{}
	for i, v := range env {
		last[nameOf(object(v))] = i
	}
	kept := make([]any, 0, len(last))
	for i, v := range env {
		if last[nameOf(object(v))] == i {
			kept = append(kept, v)
		}
	}
	return kept
}

// noTaintTwice reports whether no taint can meet two tolerations of different seconds: the first of them counts.
func noTaintTwice(tolerations []corev1.Toleration) bool {
	for i, a := range tolerations {
		for _, b := range tolerations[:i] {
			if !ptr.Equal(a.TolerationSeconds, b.TolerationSeconds) && overlap(a, b) {
				return false
			}
		}
	}
	return true
}

// overlap reports whether there may be a taint that both tolerate.
func overlap(a, b corev1.Toleration) bool {
	plain := func(t corev1.Toleration) bool { return t.Operator == "" || t.Operator == corev1.TolerationOpEqual }
	switch {
	case a.Key != "" && b.Key != "" && a.Key != b.Key, a.Effect != "" && b.Effect != "" && a.Effect != b.Effect:
		return false
	default:
		return !plain(a) || !plain(b) || a.Value == b.Value
	}
}

// noPathInAnother reports whether no mount is in the way of another: they are mounted one after the other.
func noPathInAnother(mounts []any) bool {
	var paths []string
	for _, mount := range objects(mounts) {
		at, _ := mount["mountPath"].(string)
		at = strings.TrimSuffix(path.Clean("/"+strings.ReplaceAll(at, `\`, "/")), "/") + "/"
		if slices.ContainsFunc(paths,
			func(other string) bool { return strings.HasPrefix(at, other) || strings.HasPrefix(other, at) }) {
			return false
		}
		paths = append(paths, at)
	}
	return true
}

// noPathTwice reports whether no two keys go to one file.
func noPathTwice(items []any) bool {
	seen := map[any]bool{}
	for _, item := range objects(items) {
		if seen[item["path"]] {
			return false
		}
		seen[item["path"]] = true
	}
	return true
}
