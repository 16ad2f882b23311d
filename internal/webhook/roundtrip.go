package webhook

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// rolloutPrefix is that of labels and annotations by which KusionStack Rollout takes hold of a workload. Like every
// program built on the types of Kuperator v0.7 it drops the fields that it does not know when it writes a CollaSet as
// a whole.
const rolloutPrefix = "rollout.kusionstack.io/"

// ownFields are the fields of spec that v0.7 does not have.
var ownFields = [][]string{
	{"disruption"},
	{"minReadySeconds"},
	{"progressDeadlineSeconds"},
	{"scaleStrategy", "persistentVolumeClaimRetentionPolicy", "whenTemplateChanged"},
	{"updateStrategy", "failurePolicy"},
	{"updateStrategy", "followConfiguration"},
	{"updateStrategy", "maxSurge"},
	{"updateStrategy", "rollingUpdate", "maxUnavailable"},
}

// partitionField is an integer in v0.7: a list that has a percentage in it cannot be decoded as a whole.
var partitionField = []string{"updateStrategy", "rollingUpdate", "byPartition", "partition"}

// checkRoundTrip looks after what such programs would lose of a CollaSet that they have taken hold of: it refuses an
// update in which it is gone, and warns of what there is.
func checkRoundTrip(request admission.Request) (field.ErrorList, []string) {
	var before, after struct {
		Metadata struct {
			Labels      map[string]string `json:"labels"`
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
		Spec map[string]any `json:"spec"`
	}
	if json.Unmarshal(request.Object.Raw, &after) != nil {
		return nil, nil
	}
	held := func(key string) bool { return strings.HasPrefix(key, rolloutPrefix) }
	if !slices.ContainsFunc(slices.Collect(maps.Keys(after.Metadata.Labels)), held) &&
		!slices.ContainsFunc(slices.Collect(maps.Keys(after.Metadata.Annotations)), held) {
		return nil, nil
	}
	now := ownValues(after.Spec)
	var errs field.ErrorList
	if request.Operation == admissionv1.Update && json.Unmarshal(request.OldObject.Raw, &before) == nil {
		was := ownValues(before.Spec)
		for _, path := range slices.Sorted(maps.Keys(was)) {
			if value, hasPlace := now[path]; isSet(was[path]) && hasPlace && value == nil {
				errs = append(errs, field.Forbidden(field.NewPath("spec."+path),
					"it is gone, as if a program built on older types had written the CollaSet: "+
						"write it as a patch, or take the labels and annotations "+rolloutPrefix+"… away as well"))
			}
		}
	}
	var warnings []string
	maps.DeleteFunc(now, func(_ string, value any) bool { return !isSet(value) })
	if names := slices.Sorted(maps.Keys(now)); len(names) > 0 {
		warnings = append(warnings, listed("KusionStack Rollout loses, when it writes the CollaSet, in spec: ", names))
	}
	if partition, isText := at(after.Spec, partitionField).(string); isText {
		warnings = append(warnings,
			fmt.Sprintf("spec.%s is %q: KusionStack Rollout cannot read CollaSets with it, use a number",
				strings.Join(partitionField, "."), partition))
	}
	return errs, warnings
}

// ownValues are the values of the fields that v0.7 does not have, by their path in spec, as far as what a field is a
// part of is there: nil for a field that is absent. Who takes the whole away does not lose the field by accident.
func ownValues(spec map[string]any) map[string]any {
	values := map[string]any{}
	for _, path := range ownFields {
		whole, name := path[:len(path)-1], path[len(path)-1]
		if fields, is := at(spec, whole).(map[string]any); is {
			values[strings.Join(path, ".")] = fields[name]
		}
	}
	for name, container := range initContainers(spec) {
		values["template.spec.initContainers["+name+"].restartPolicy"] = container["restartPolicy"]
	}
	return values
}

// isSet reports whether a value is there and says something.
func isSet(value any) bool { return value != nil && !reflect.ValueOf(value).IsZero() }

// initContainers are those of the template, by name.
func initContainers(spec map[string]any) map[string]map[string]any {
	found := map[string]map[string]any{}
	list, _ := at(spec, []string{"template", "spec", "initContainers"}).([]any)
	for _, item := range list {
		if container, is := item.(map[string]any); is {
			if name, is := container["name"].(string); is {
				found[name] = container
			}
		}
	}
	return found
}

// at is the value at a path, nil for none.
func at(value any, path []string) any {
	for _, key := range path {
		fields, is := value.(map[string]any)
		if !is {
			return nil
		}
		value = fields[key]
	}
	return value
}
