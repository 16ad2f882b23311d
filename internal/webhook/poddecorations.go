package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/decoration"
	"kusionstack.io/kuperator/internal/revision"
)

// validatePodDecoration refuses PodDecorations that can never work, and warns of what becomes of the Pods.
func (f *forecaster) validatePodDecoration(ctx context.Context, request admission.Request) admission.Response {
	d := appsv1alpha1.PodDecoration{}
	if answer := changed(request, "poddecorations", appsv1alpha1.PodDecorationKind, &d); answer != nil {
		return *answer
	}
	errs := checkPodDecoration(&d.Spec)
	after, err := decorationIn(request.Object.Raw)
	if err != nil {
		errs = append(errs, field.Invalid(field.NewPath("spec", "template"), field.OmitValueType{}, err.Error()))
	}
	var warnings []string
	if len(errs) == 0 {
		warnings = warnPodDecoration(&d.Spec)
		if before, err := decorationIn(request.OldObject.Raw); err == nil && request.Operation == admissionv1.Update {
			warnings = append(warnings, f.forecastDecoration(ctx, &d, before, after)...)
		}
	}
	return verdict(appsv1alpha1.Kind(appsv1alpha1.PodDecorationKind), nameOf(d.ObjectMeta), errs, warnings)
}

// checkPodDecoration checks the selectors. The schema and decoration.Parse check the rest.
func checkPodDecoration(spec *appsv1alpha1.PodDecorationSpec) field.ErrorList {
	path := field.NewPath("spec")
	errs := checkSelector(spec.Selector, path.Child("selector"))
	if rolling := spec.UpdateStrategy.RollingUpdate; rolling != nil {
		errs = append(errs,
			checkSelector(rolling.Selector, path.Child("updateStrategy", "rollingUpdate", "selector"))...)
	}
	return errs
}

// decorationIn is the decoration of a stored PodDecoration.
func decorationIn(raw []byte) (decoration.Decoration, error) {
	var stored struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     map[string]any    `json:"spec"`
	}
	if err := json.Unmarshal(raw, &stored); err != nil {
		return decoration.Decoration{}, err
	}
	data, err := decoration.Data(stored.Spec)
	if err != nil {
		return decoration.Decoration{}, err
	}
	template, weight, err := decoration.Parse(data)
	return decoration.Decoration{Name: nameOf(stored.Metadata), Weight: weight, Template: template}, err
}

// warnPodDecoration names what is legal but does not do what one may think.
func warnPodDecoration(spec *appsv1alpha1.PodDecorationSpec) []string {
	var warnings []string
	if spec.Selector == nil {
		warnings = append(warnings, "spec.selector is missing: no Pod is selected")
	}
	rolling := spec.UpdateStrategy.RollingUpdate
	if rolling != nil && rolling.Selector != nil && rolling.Partition != nil {
		warnings = append(warnings,
			"spec.updateStrategy.rollingUpdate sets selector and partition: selector applies, the partition is ignored")
	}
	warnings = append(warnings, warnFailurePolicy(spec.UpdateStrategy.FailurePolicy, spec.ProgressDeadlineSeconds)...)
	if affinity := spec.Template.Affinity; affinity != nil && len(affinity.NodeSelectorTerms) > 0 {
		warnings = append(warnings, "spec.template.affinity.nodeSelectorTerms are alternatives: a Pod that has terms of its "+
			"own may run on more nodes with them")
	}
	overwritten := map[string]bool{}
	for _, m := range spec.Template.Metadata {
		if m != nil && m.PatchPolicy == appsv1alpha1.OverwriteMetadata {
			for key := range m.Labels {
				overwritten[key] = true
			}
		}
	}
	if len(overwritten) > 0 {
		warnings = append(warnings, fmt.Sprintf("spec.template.metadata overwrites labels (%s): a workload whose selector "+
			"asks for one of them loses its Pods and creates others without end",
			strings.Join(slices.Sorted(maps.Keys(overwritten)), ", ")))
	}
	for i, p := range spec.Template.PrimaryContainers {
		if p != nil && ptr.Deref(p.Name, "") != "" && p.TargetPolicy != appsv1alpha1.InjectByName {
			warnings = append(warnings, fmt.Sprintf("spec.template.primaryContainers[%d].name is ignored: it counts with "+
				"targetPolicy ByName only", i))
		}
	}
	if keys := ownLabels(spec); len(keys) > 0 {
		warnings = append(warnings, fmt.Sprintf("spec.selector asks for labels that spec.template sets (%s): Pods are "+
			"selected by the labels that they have from their workload", strings.Join(keys, ", ")))
	}
	return warnings
}

// ownLabels are the labels that the selector asks for and the template sets.
func ownLabels(spec *appsv1alpha1.PodDecorationSpec) []string {
	if spec.Selector == nil {
		return nil
	}
	set := map[string]bool{}
	for _, m := range spec.Template.Metadata {
		if m != nil {
			for key := range m.Labels {
				set[key] = true
			}
		}
	}
	var keys []string
	for key := range spec.Selector.MatchLabels {
		if set[key] {
			keys = append(keys, key)
		}
	}
	for _, e := range spec.Selector.MatchExpressions {
		if set[e.Key] {
			keys = append(keys, e.Key)
		}
	}
	return keys
}

// forecastDecoration is what becomes of the Pods, nothing if that cannot be told: it is only advice.
func (f *forecaster) forecastDecoration(
	ctx context.Context, d *appsv1alpha1.PodDecoration, before, after decoration.Decoration,
) []string {
	ctx, cancel := context.WithTimeout(ctx, discoveryPatience)
	defer cancel()
	can, err := f.serverCan(ctx)
	if err != nil {
		return nil
	}
	change, err := revision.Forecast([]decoration.Decoration{before}, []decoration.Decoration{after}, can)
	if err != nil || change.IsZero() {
		return nil
	}
	pods, some := affectedBy(d)
	switch {
	case !some, change.InPlace():
		return nil
	}
	return []string{listed(pods+" will be re-created, or stay as they are if nothing re-creates them, because of ",
		change.Forcing)}
}

// affectedBy says which Pods an update of a PodDecoration is about, and whether there are any.
func affectedBy(d *appsv1alpha1.PodDecoration) (pods string, some bool) {
	count := d.Status.MatchedPods
	if rolling := d.Spec.UpdateStrategy.RollingUpdate; rolling != nil {
		switch {
		case rolling.Selector != nil:
			return "Pods that spec.updateStrategy.rollingUpdate.selector matches", count > 0
		case rolling.Partition != nil:
			count -= *rolling.Partition
		}
	}
	return podCount(count), count > 0
}
