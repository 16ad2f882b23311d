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
	{appsv1alpha1.OperationJobKind, []string{"operationjob", "operationjobs", "opj",
		"operationjob.apps.kusionstack.io", "operationjobs.apps.kusionstack.io"}},
	{appsv1alpha1.PodDecorationKind, []string{"poddecoration", "poddecorations", "pd",
		"poddecoration.apps.kusionstack.io", "poddecorations.apps.kusionstack.io"}},
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
		ref.Kind = kindOf(word)
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

// targets reads several: KIND/NAME each, KIND NAME NAME, or NAMEs alone. All are of one kind.
func targets(args []string, usual string, allowed ...string) ([]insight.Ref, error) {
	kind := ""
	if len(args) > 1 && kindOf(args[0]) != "" {
		kind, args = args[0]+"/", args[1:]
	}
	var refs []insight.Ref
	for _, arg := range args {
		ref, err := target([]string{kind + arg}, usual, allowed...)
		switch {
		case err != nil:
			return nil, err
		case len(refs) > 0 && ref.Kind != refs[0].Kind:
			return nil, fmt.Errorf("%s and %s are of two kinds: name objects of one kind", shown(refs[0]), shown(ref))
		case slices.Contains(refs, ref):
			return nil, fmt.Errorf("%s is named twice", shown(ref))
		}
		refs = append(refs, ref)
	}
	return refs, nil
}

// kindOf is the kind that a word names; "" if it names none.
func kindOf(word string) string {
	for _, k := range kinds {
		if slices.Contains(k.words, strings.ToLower(word)) {
			return k.kind
		}
	}
	return ""
}

// withoutKind is the name in KIND/NAME, for commands that know one kind.
func withoutKind(arg string, words ...string) string {
	if word, name, ok := strings.Cut(arg, "/"); ok && slices.Contains(words, strings.ToLower(word)) {
		return name
	}
	return arg
}

func shown(ref insight.Ref) string { return strings.ToLower(ref.Kind) + "/" + ref.Name }
