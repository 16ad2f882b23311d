package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/revision"
)

const (
	// discoveryPatience is how long an admission waits to learn what the API server can, once every some minutes.
	discoveryPatience = 2 * time.Second
	// maxWarning bounds a warning, in characters: API servers cut long ones.
	maxWarning = 160
	// restartedAt is how a Change names the annotation.
	restartedAt = "template.metadata.annotations[" + revision.RestartedAtAnnotation + "]"
)

// forecaster says with the answer to a changed template what becomes of the Pods.
type forecaster struct {
	// serverCan tells what the API server lets change on a running Pod.
	serverCan func(context.Context) (revision.Capabilities, error)
	// renews is true if collaset-controller goes by Kuperator v0.7: a claim is renewed for any change of its template,
	// unless whenTemplateChanged says what becomes of it, and InPlaceOnly re-creates Pods.
	renews bool
}

// forecaster makes one that goes by the flags.
func (f *flags) forecaster(serverCan func(context.Context) (revision.Capabilities, error)) *forecaster {
	return &forecaster{serverCan: serverCan, renews: f.compatibility == bootstrap.KuperatorV07}
}

// validateAndForecast is validateCollaSet, with the forecast as a warning if Pods are not updated in place.
func (f *forecaster) validateAndForecast(ctx context.Context, request admission.Request) admission.Response {
	response := validateCollaSet(ctx, request)
	if response.Allowed && concerns(request, "collasets", admissionv1.Update) {
		response.Warnings = append(response.Warnings, f.forecast(ctx, request)...)
	}
	return response
}

// forecast is a warning if the template changed, and nothing if that cannot be told: it is only advice.
func (f *forecaster) forecast(ctx context.Context, request admission.Request) []string {
	before, was := revisionOf(request.OldObject.Raw)
	after, is := revisionOf(request.Object.Raw)
	if was == nil || is == nil || reflect.DeepEqual(before, after) || isAtNone(was) {
		return nil
	}
	from, to := parse(before), parse(after)
	if from == nil || to == nil || from.Same(to) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, discoveryPatience)
	defer cancel()
	can, err := f.serverCan(ctx)
	if err != nil {
		return nil
	}
	return f.announce(is, revision.Explain(from, to, can))
}

// isAtNone reports whether no Pod has the template yet, so that a change of it tells nothing about the Pods: it was
// paused, say, or this change takes it back.
func isAtNone(set *appsv1alpha1.CollaSet) bool {
	st := &set.Status
	return st.ObservedGeneration >= set.Generation && st.UpdatedRevision != "" && st.UpdatedReplicas == 0
}

// revisionOf is as much of a stored CollaSet's spec as makes its revision, and the CollaSet; nil if it cannot be read.
func revisionOf(raw []byte) (map[string]any, *appsv1alpha1.CollaSet) {
	set := &appsv1alpha1.CollaSet{}
	var stored struct {
		Spec map[string]any `json:"spec"`
	}
	if json.Unmarshal(raw, set) != nil || json.Unmarshal(raw, &stored) != nil {
		return nil, nil
	}
	return map[string]any{"template": stored.Spec["template"],
		"volumeClaimTemplates": stored.Spec["volumeClaimTemplates"]}, set
}

func parse(spec map[string]any) *revision.Data {
	raw, err := revision.Render(spec)
	if err != nil {
		return nil
	}
	data, err := revision.Parse(raw)
	if err != nil {
		return nil
	}
	return data
}

// announce tells where the policy has Pods re-created, or left as they are. Recreate and Replace do what their names say.
func (f *forecaster) announce(set *appsv1alpha1.CollaSet, change revision.Change) []string {
	strategy := &set.Spec.UpdateStrategy
	pods, some := affected(set)
	if !some || strategy.PodUpdatePolicy == appsv1alpha1.PodUpdateRecreate ||
		strategy.PodUpdatePolicy == appsv1alpha1.PodUpdateReplace {
		return nil
	}
	forcing := f.forcingFields(set, change)
	switch {
	case len(forcing) == 0:
		return nil // the normal case: kubectl apply --warnings-as-errors passes
	case strategy.PodUpdatePolicy == appsv1alpha1.PodUpdateInPlaceOnly && !f.renews:
		return []string{listed(pods+" will not be updated (InPlaceOnly) because of ", forcing)}
	case slices.Equal(forcing, []string{restartedAt}):
		return nil // it is what was asked for
	default:
		return []string{listed(pods+" will be re-created because of ", forcing)}
	}
}

// forcingFields are those that force. A claim that differs from its template is kept unless the policy says otherwise.
func (f *forecaster) forcingFields(set *appsv1alpha1.CollaSet, change revision.Change) []string {
	policy := set.Spec.ScaleStrategy.PersistentVolumeClaimRetentionPolicy
	if f.renews && (policy == nil || policy.WhenTemplateChanged == "") {
		forcing := slices.Clone(change.Forcing)
		for _, template := range change.Expand {
			forcing = append(forcing, "volumeClaimTemplates["+template+"]")
		}
		return forcing
	}
	if change.OnlyClaimsForce() &&
		(policy == nil || policy.WhenTemplateChanged != appsv1alpha1.DeletePersistentVolumeClaim) {
		return nil
	}
	return change.Forcing
}

// affected says which Pods an update is about, and whether there are any.
func affected(set *appsv1alpha1.CollaSet) (pods string, some bool) {
	count := min(set.Status.Replicas, ptr.Deref(set.Spec.Replicas, 0))
	if rolling := set.Spec.UpdateStrategy.RollingUpdate; rolling != nil {
		if rolling.ByLabel != nil {
			return "Pods with the label " + appsv1alpha1.UpdateIncludedLabel, count > 0
		}
		if rolling.ByPartition != nil && rolling.ByPartition.Partition != nil {
			held, err := intstr.GetScaledValueFromIntOrPercent(rolling.ByPartition.Partition,
				int(ptr.Deref(set.Spec.Replicas, 0)), true)
			if err != nil {
				return "", false // the schema refuses that
			}
			count = min(count, ptr.Deref(set.Spec.Replicas, 0)-int32(held))
		}
	}
	return podCount(count), count > 0
}

// podCount is a number of Pods, for people.
func podCount(pods int32) string {
	if pods == 1 {
		return "1 Pod"
	}
	return fmt.Sprintf("%d Pods", pods)
}

// listed is the text with as many of the fields as a warning holds.
func listed(text string, fields []string) string {
	for n := len(fields); n > 0; n-- {
		out := text + strings.Join(fields[:n], ", ")
		if n < len(fields) {
			out += fmt.Sprintf(" and %d more", len(fields)-n)
		}
		if len(out) <= maxWarning {
			return out
		}
	}
	return text + "fields of the template: see status.nextUpdate"
}
