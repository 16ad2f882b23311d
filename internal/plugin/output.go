package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/insight"
)

const (
	outputJSON = "json"
	outputYAML = "yaml"
	outputName = "name"
	outputWide = "wide"
	// outputPath is what a JSONPath template begins with.
	outputPath = "jsonpath="
)

// print writes a value as --output wants it: text, the names of its objects, or something of its JSON form.
func (p *plugin) print(value any, text func(io.Writer)) error {
	switch template, isPath := strings.CutPrefix(p.output, outputPath); {
	case p.isText():
		text(p.Out)
		return nil
	case p.output == outputJSON:
		encoder := json.NewEncoder(p.Out)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		return encoder.Encode(value)
	case p.output == outputYAML:
		out, err := yaml.Marshal(value)
		if err != nil {
			return err
		}
		_, err = p.Out.Write(out)
		return err
	case p.output == outputName:
		refs, ok := objectsOf(value)
		if !ok {
			return errors.New("-o name is for commands about objects: use json, yaml or jsonpath=TEMPLATE")
		}
		for _, ref := range refs {
			fmt.Fprintln(p.Out, qualified(ref))
		}
		return nil
	case isPath:
		return p.printPath(template, value)
	}
	return p.checkOutput()
}

// isText reports whether the output is for people.
func (p *plugin) isText() bool { return p.output == "" || p.output == outputWide }

// checkOutput refuses an unknown format before anything is read or written.
func (p *plugin) checkOutput() error {
	if template, isPath := strings.CutPrefix(p.output, outputPath); isPath {
		_, err := parsePath(template)
		return err
	}
	if p.isText() || slices.Contains([]string{outputJSON, outputYAML, outputName}, p.output) {
		return nil
	}
	return fmt.Errorf("--output is %q: use json, yaml, name, wide or jsonpath=TEMPLATE, or leave it out", p.output)
}

// parsePath reads a JSONPath template. As in kubectl, a path alone may be without braces and without the first dot.
func parsePath(template string) (*jsonpath.JSONPath, error) {
	if template == "" {
		return nil, errors.New("--output=jsonpath= lacks a template, such as jsonpath={.workloads[*].name}")
	}
	if !strings.Contains(template, "{") {
		template = "{." + strings.TrimPrefix(template, ".") + "}"
	}
	path := jsonpath.New("output").AllowMissingKeys(true)
	if err := path.Parse(template); err != nil {
		return nil, fmt.Errorf("--output: %w", err)
	}
	return path, nil
}

// printPath prints what a JSONPath template finds in the JSON form of a value.
func (p *plugin) printPath(template string, value any) error {
	path, err := parsePath(template)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return err
	}
	var data any
	if err := json.Unmarshal(raw, &data); err != nil {
		return err
	}
	return path.Execute(p.Out, data)
}

// objectsOf are the objects that a value is about; false if it is not about objects.
func objectsOf(value any) ([]insight.Ref, bool) {
	var refs []insight.Ref
	switch v := value.(type) {
	case insight.Fleet:
		for i := range v.Jobs {
			refs = append(refs, insight.Ref{Kind: appsv1alpha1.OperationJobKind, Name: v.Jobs[i].Name})
		}
		for i := range v.Workloads {
			refs = append(refs, v.Workloads[i].Ref)
		}
	case waitList:
		for _, w := range v.Waits {
			refs = append(refs, w.Object)
		}
	case insight.Answer:
		refs = append(refs, v.Subject)
	case insight.Rollout:
		refs = append(refs, v.CollaSet)
	case insight.Drain:
		for i := range v.Pods {
			refs = append(refs, insight.Ref{Kind: "Pod", Name: v.Pods[i].Name})
		}
	case change:
		refs = append(refs, v.Object)
	case *appsv1alpha1.OperationJob:
		refs = append(refs, insight.Ref{Kind: appsv1alpha1.OperationJobKind, Name: v.Name})
	case outlooks:
		for _, o := range v.Plans {
			refs = append(refs, o.subject())
		}
	case differences:
		for _, d := range v.Diffs {
			refs = append(refs, d.Plan.subject())
		}
	case history:
		for i := range v.Revisions {
			refs = append(refs, insight.Ref{Kind: "ControllerRevision", Name: v.Revisions[i].Name})
		}
	case oneRevision:
		refs = append(refs, insight.Ref{Kind: "ControllerRevision", Name: v.Name})
	default:
		return nil, false
	}
	return refs, true
}

// qualified names an object with the group of its kind, as kubectl get -o name does.
func qualified(ref insight.Ref) string {
	group := ""
	switch ref.Kind {
	case appsv1alpha1.CollaSetKind, appsv1alpha1.OperationJobKind, appsv1alpha1.PodDecorationKind:
		group = "." + appsv1alpha1.SchemeGroupVersion.Group
	case "Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "ControllerRevision":
		group = ".apps"
	case "Job":
		group = ".batch"
	}
	return strings.ToLower(ref.Kind) + group + "/" + ref.Name
}

// since is a time as people read it: how long ago, and when.
func since(t *time.Time, now time.Time) string {
	if t == nil {
		return ""
	}
	return fmt.Sprintf("since %s (%s)", t.UTC().Format(time.RFC3339), ago(t, now))
}

// ago is how long ago a time is; "" for nil.
func ago(t *time.Time, now time.Time) string {
	if t == nil {
		return ""
	}
	return age(t, now) + " ago"
}

// age is how much time has passed since a time; "" for nil.
func age(t *time.Time, now time.Time) string {
	if t == nil {
		return ""
	}
	return duration.HumanDuration(max(0, now.Sub(*t)))
}

// joined are the texts that are not empty, with two spaces between.
func joined(texts ...string) string {
	var kept []string
	for _, t := range texts {
		if t != "" {
			kept = append(kept, t)
		}
	}
	return strings.Join(kept, "  ")
}

// writeGaps says what is not said, once for each reason.
func writeGaps(w io.Writer, gaps []insight.Gap) {
	var reasons []string
	unsaid := map[string][]string{}
	for _, g := range gaps {
		why := g.Why
		if g.Missing != "" {
			why = "you may not " + g.Missing
			if role := roleFor(g.Missing); role != "" {
				why += "; " + role
			}
		}
		if unsaid[why] == nil {
			reasons = append(reasons, why)
		}
		unsaid[why] = append(unsaid[why], g.Unsaid)
	}
	for _, why := range reasons {
		fmt.Fprintf(w, "not known: %s (%s)\n", strings.Join(unsaid[why], "; "), why)
	}
}
