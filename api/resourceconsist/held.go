package resourceconsist

import (
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// HeldBy are the names of AdaptersAnnotation and of conditions with HeldConditionPrefix of the employer, sorted; nil if
// there are none.
func HeldBy(employer client.Object) []string {
	names := append(AnnotatedHolders(employer), ConditionedHolders(employer)...)
	slices.Sort(names)
	return slices.Compact(names)
}

// AnnotatedHolders are the names of AdaptersAnnotation, in its order.
func AnnotatedHolders(employer client.Object) []string {
	raw := employer.GetAnnotations()[AdaptersAnnotation]
	if raw == "" {
		return nil
	}
	return strings.Split(raw, ",")
}

// ConditionedHolders are the names of conditions with HeldConditionPrefix, sorted.
func ConditionedHolders(employer client.Object) []string {
	var names []string
	conditions, _ := ConditionsOf(employer)
	for i := range conditions {
		if name, ok := strings.CutPrefix(conditions[i].Type, HeldConditionPrefix); ok &&
			conditions[i].Status == metav1.ConditionTrue {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// MayHold reports whether the adapter may hold something for the employer.
func MayHold(employer client.Object, adapter string) bool {
	return slices.ContainsFunc(HeldBy(employer), func(name string) bool { return HolderOf(name) == adapter })
}

// HolderOf is the adapter in a name of HeldBy.
func HolderOf(name string) string {
	adapter, _, _ := strings.Cut(name, ".")
	return adapter
}

// HolderName is the name of an adapter that holds something for an employer, at a place if it is a Placer.
func HolderName(adapter, place string) string {
	if place == "" {
		return adapter
	}
	return adapter + "." + place
}

// PlacesOf are the places at which a Placer may have members of the employer, sorted: the current place, and earlier
// ones until nothing is left there.
func PlacesOf(employer client.Object, adapter, now string) []string {
	var places []string
	if now != "" {
		places = append(places, now)
	}
	for _, name := range HeldBy(employer) {
		if place, ok := strings.CutPrefix(name, adapter+"."); ok {
			places = append(places, place)
		}
	}
	slices.Sort(places)
	return slices.Compact(places)
}

// ConditionsOf are the employer's status.conditions, which must not be changed; false if its kind has none.
func ConditionsOf(employer client.Object) ([]metav1.Condition, bool) {
	value := reflect.Indirect(reflect.ValueOf(employer))
	for _, name := range []string{"Status", "Conditions"} {
		if value.Kind() != reflect.Struct {
			return nil, false
		}
		value = value.FieldByName(name)
	}
	if !value.IsValid() {
		return nil, false
	}
	conditions, ok := value.Interface().([]metav1.Condition)
	return conditions, ok
}
