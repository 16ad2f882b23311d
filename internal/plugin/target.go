package plugin

import (
	"fmt"
	"slices"
	"strings"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/insight"
)

// kinds are the words by which users name kinds, as kubectl knows them.
var kinds = []struct {
	kind  string
	words []string
}{
	{"Pod", []string{"pod", "pods", "po"}},
	{appsv1alpha1.CollaSetKind, []string{"collaset", "collasets", "cls", "collaset.apps.kusionstack.io",
		"collasets.apps.kusionstack.io"}},
	{"Deployment", []string{"deployment", "deployments", "deploy", "deployment.apps", "deployments.apps"}},
	{"StatefulSet", []string{"statefulset", "statefulsets", "sts", "statefulset.apps", "statefulsets.apps"}},
	{"ReplicaSet", []string{"replicaset", "replicasets", "rs", "replicaset.apps", "replicasets.apps"}},
	{"DaemonSet", []string{"daemonset", "daemonsets", "ds", "daemonset.apps", "daemonsets.apps"}},
	{"Job", []string{"job", "jobs", "job.batch", "jobs.batch"}},
}

// target reads KIND/NAME, KIND NAME, or NAME alone, which is of the kind that is usual for the command.
func target(args []string, usual string, allowed ...string) (insight.Ref, error) {
	word, name := "", ""
	switch len(args) {
	case 1:
		var slash bool
		if word, name, slash = strings.Cut(args[0], "/"); !slash {
			word, name = "", args[0]
		}
	case 2:
		word, name = args[0], args[1]
	}
	ref := insight.Ref{Kind: usual, Name: name}
	if word != "" {
		ref.Kind = ""
		for _, k := range kinds {
			if slices.Contains(k.words, strings.ToLower(word)) {
				ref.Kind = k.kind
			}
		}
	}
	if ref.Kind == "" || !slices.Contains(allowed, ref.Kind) || name == "" {
		var forms []string
		for _, k := range allowed {
			forms = append(forms, strings.ToLower(k)+"/NAME")
		}
		return ref, fmt.Errorf("%q is not what this command is about: give it as %s", strings.Join(args, " "),
			strings.Join(forms, ", "))
	}
	return ref, nil
}

func shown(ref insight.Ref) string { return strings.ToLower(ref.Kind) + "/" + ref.Name }
