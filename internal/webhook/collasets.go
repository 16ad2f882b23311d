package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/drain"
)

// revisionSuffix is how much a ControllerRevision's name adds to the CollaSet's: a dash and a hash of at most ten
// characters. The revision's name is the value of a label on every Pod.
const revisionSuffix = 11

// collaSetShape is as much of a CollaSet as its defaults need. A nil pointer is a field that is absent or null.
type collaSetShape struct {
	Spec struct {
		UpdateStrategy *struct {
			RollingUpdate *struct {
				ByPartition *json.RawMessage `json:"byPartition"`
				ByLabel     *json.RawMessage `json:"byLabel"`
			} `json:"rollingUpdate"`
			PodUpgradePolicy *string `json:"podUpgradePolicy"`
		} `json:"updateStrategy"`
		NamingStrategy *struct {
			PodNamingSuffixPolicy *string `json:"podNamingSuffixPolicy"`
		} `json:"namingStrategy"`
	} `json:"spec"`
}

// defaultCollaSet fills in what the schema cannot: a default is applied there to what is absent only, not to an empty
// string, and not because a sibling is absent. The template is never touched: that would make a new revision. And it
// keeps replicas that an update leaves out: the schema's default for them is 0.
func defaultCollaSet(_ context.Context, request admission.Request) admission.Response {
	if !concerns(request, "collasets", admissionv1.Create, admissionv1.Update) {
		return admission.Allowed("")
	}
	var set collaSetShape
	if err := json.Unmarshal(request.Object.Raw, &set); err != nil {
		return undecodable(appsv1alpha1.CollaSetKind, err)
	}
	was, leftOut, err := droppedReplicas(request)
	if err != nil {
		return undecodable(appsv1alpha1.CollaSetKind, err)
	}
	var patches []jsonpatch.JsonPatchOperation
	var warnings []string
	if leftOut {
		patches, warnings = append(patches, add("/spec/replicas", was)), append(warnings, keptReplicas(was))
	}
	if strategy := set.Spec.UpdateStrategy; strategy != nil {
		if strategy.PodUpgradePolicy != nil && *strategy.PodUpgradePolicy == "" {
			patches = append(patches, add("/spec/updateStrategy/podUpgradePolicy", appsv1alpha1.PodUpdateInPlaceIfPossible))
		}
		if rolling := strategy.RollingUpdate; rolling != nil && rolling.ByPartition == nil && rolling.ByLabel == nil {
			patches = append(patches, add("/spec/updateStrategy/rollingUpdate/byPartition", struct{}{}))
		}
	}
	if naming := set.Spec.NamingStrategy; naming != nil && naming.PodNamingSuffixPolicy != nil &&
		*naming.PodNamingSuffixPolicy == "" {
		patches = append(patches, add("/spec/namingStrategy/podNamingSuffixPolicy", appsv1alpha1.PodNamingSuffixRandom))
	}
	return admission.Patched("", patches...).WithWarnings(warnings...)
}

// validateCollaSet refuses what no Pod can ever be made of, or what no controller could act upon.
func validateCollaSet(_ context.Context, request admission.Request) admission.Response {
	set := appsv1alpha1.CollaSet{}
	if answer := changed(request, "collasets", appsv1alpha1.CollaSetKind, &set); answer != nil {
		return *answer
	}
	var errs field.ErrorList
	warnings := warnCollaSet(&set.Spec)
	if p := drain.PolicyOf(&set); p.Obstacle != "" && set.DeletionTimestamp == nil {
		warnings = append(warnings, fmt.Sprintf(
			"spec.disruption.onEviction %s has no effect, evicted Pods are deleted first: %s", p.OnEviction, p.Obstacle))
	}
	if request.Operation == admissionv1.Create {
		errs = append(errs, checkName(nameOf(set.ObjectMeta))...)
	}
	was := appsv1alpha1.CollaSet{}
	if request.Operation == admissionv1.Update {
		if err := json.Unmarshal(request.OldObject.Raw, &was); err != nil {
			return undecodable(appsv1alpha1.CollaSetKind, err)
		}
	}
	if sequential(&set.Spec) && !sequential(&was.Spec) {
		errs = append(errs, checkHostname(nameOf(set.ObjectMeta))...)
	}
	errs = append(errs, checkCollaSet(&set.Spec)...)
	gone, warned := checkRoundTrip(request)
	errs, warnings = append(errs, gone...), append(warnings, warned...)
	if dropped, _, err := droppedReplicas(request); err == nil && dropped > 0 {
		warnings = append(warnings, goneReplicas(dropped))
	}
	return verdict(appsv1alpha1.Kind(appsv1alpha1.CollaSetKind), nameOf(set.ObjectMeta), errs, warnings)
}

// checkName makes sure that what is named after the CollaSet can exist. It is asked at creation only: names do not
// change.
func checkName(name string) field.ErrorList {
	const longest = validation.LabelValueMaxLength - revisionSuffix
	if len(name) > longest {
		return field.ErrorList{field.Invalid(field.NewPath("metadata", "name"), name,
			fmt.Sprintf("it has %d characters: use at most %d, because Pods carry the name and a revision hash as a label",
				len(name), longest))}
	}
	return nil
}

func sequential(spec *appsv1alpha1.CollaSetSpec) bool {
	return spec.NamingStrategy != nil &&
		spec.NamingStrategy.PodNamingSuffixPolicy == appsv1alpha1.PodNamingSuffixPersistentSequence
}

// checkHostname is asked when names in sequence are asked for: a set that has them already must be able to change. The
// length is bounded by checkName and, for what was made without this server, told by the controller.
func checkHostname(name string) field.ErrorList {
	if !strings.Contains(name, ".") {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata", "name"), name,
		"a name in persistent sequence is a hostname as well: use no dots, or podNamingSuffixPolicy Random")}
}

func checkCollaSet(spec *appsv1alpha1.CollaSetSpec) field.ErrorList {
	path := field.NewPath("spec")
	errs := checkCollaSetSelector(spec, path.Child("selector"))
	claims := make([]string, 0, len(spec.VolumeClaimTemplates))
	for i := range spec.VolumeClaimTemplates {
		claims = append(claims, spec.VolumeClaimTemplates[i].Name)
		errs = append(errs, checkClaimTemplate(&spec.VolumeClaimTemplates[i], path.Child("volumeClaimTemplates").Index(i))...)
	}
	errs = append(errs, checkPodTemplate(&spec.Template, claims, path.Child("template"))...)
	errs = append(errs, checkPodNames(spec.ScaleStrategy.PodToExclude, path.Child("scaleStrategy", "podToExclude"))...)
	errs = append(errs, checkPodNames(spec.ScaleStrategy.PodToInclude, path.Child("scaleStrategy", "podToInclude"))...)
	errs = append(errs, checkPodNames(spec.ScaleStrategy.PodToDelete, path.Child("scaleStrategy", "podToDelete"))...)
	if pool := spec.ScaleStrategy.Context; pool != "" {
		if problems := validation.IsDNS1123Subdomain(pool); len(problems) > 0 {
			errs = append(errs, field.Invalid(path.Child("scaleStrategy", "context"), pool,
				"this is no name of a ResourceContext: "+problems[0]))
		}
	}
	return errs
}

// checkCollaSetSelector checks the selector's syntax, that it selects anything less than everything, and that it
// matches the template.
func checkCollaSetSelector(spec *appsv1alpha1.CollaSetSpec, path *field.Path) field.ErrorList {
	if spec.Selector == nil {
		return nil // the schema refuses that
	}
	if errs := metav1validation.ValidateLabelSelector(spec.Selector, metav1validation.LabelSelectorValidationOptions{},
		path); len(errs) > 0 {
		return errs
	}
	if len(spec.Selector.MatchLabels)+len(spec.Selector.MatchExpressions) == 0 {
		return field.ErrorList{field.Invalid(path, "{}",
			"an empty selector is not allowed: set matchLabels to labels of spec.template.metadata")}
	}
	selector, err := metav1.LabelSelectorAsSelector(spec.Selector)
	if err != nil {
		return field.ErrorList{field.Invalid(path, metav1.FormatLabelSelector(spec.Selector), err.Error())}
	}
	if !selector.Matches(labels.Set(spec.Template.Labels)) {
		return field.ErrorList{field.Invalid(path, selector.String(),
			"it does not match spec.template.metadata.labels: make them equal")}
	}
	return nil
}

// checkPodNames refuses entries that can be no Pod.
func checkPodNames(names []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, name := range names {
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 && len(errs) < maxReported {
			errs = append(errs, field.Invalid(path.Index(i), name, "this is no name of a Pod: "+problems[0]))
		}
	}
	return errs
}

// warnCollaSet names what is legal but does not do what one may think.
func warnCollaSet(spec *appsv1alpha1.CollaSetSpec) []string {
	claims := make([]string, 0, len(spec.VolumeClaimTemplates))
	for i := range spec.VolumeClaimTemplates {
		claims = append(claims, spec.VolumeClaimTemplates[i].Name)
	}
	warnings := warnPodTemplate(&spec.Template, claims)
	if rolling := spec.UpdateStrategy.RollingUpdate; rolling != nil && rolling.ByLabel != nil &&
		rolling.ByPartition != nil {
		warnings = append(warnings,
			"spec.updateStrategy.rollingUpdate sets byLabel and byPartition: byLabel wins, the partition is ignored")
	} else if rolling != nil && rolling.ByPartition != nil {
		if held, replicas := rolling.ByPartition.Partition, ptr.Deref(spec.Replicas, 0); held != nil &&
			held.Type == intstr.Int && held.IntVal > replicas && replicas > 0 {
			warnings = append(warnings,
				fmt.Sprintf("spec.updateStrategy.rollingUpdate.byPartition.partition %d holds back all %d Pods: none is updated",
					held.IntVal, replicas))
		}
	}
	return append(warnings, warnFailurePolicy(spec.UpdateStrategy.FailurePolicy, spec.ProgressDeadlineSeconds)...)
}

// warnFailurePolicy names a policy that never applies.
func warnFailurePolicy(policy appsv1alpha1.RolloutFailurePolicy, deadline *int32) []string {
	if policy == "" || policy == appsv1alpha1.RolloutFailureReport ||
		ptr.Deref(deadline, 0) != appsv1alpha1.NoProgressDeadlineSeconds {
		return nil
	}
	return []string{fmt.Sprintf("spec.updateStrategy.failurePolicy %s does nothing: spec.progressDeadlineSeconds %d means no "+
		"deadline", policy, appsv1alpha1.NoProgressDeadlineSeconds)}
}
