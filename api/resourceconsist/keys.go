package resourceconsist

import (
	"crypto/md5" //nolint:gosec // the published format of the finalizer; nothing depends on its secrecy
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

const (
	// CleanFinalizer keeps an employer until its backend has no members of it.
	// Writer: the controller of an employer kind that has a Mover or Provisioner, while the employer takes part and
	// until its Pods are released. It is also found on employers taken over from upstream, and removed from those when
	// they are deleted, with and without a Mover.
	CleanFinalizer = "resource-consist.kusionstack.io/clean-finalizer"

	// AdaptersAnnotation, on an employer, is the list of adapters that may hold something for it: those that move
	// traffic or own a resource, and employ or employed Pods for it. An adapter that is not in the list is not called,
	// so that an employer does not depend on backends that it does not use.
	// Writer: the controller, together with CleanFinalizer and before the first call that changes a backend. Format:
	// comma-separated names, in order; the name of a Placer is "<adapter>.<place>". Lifetime: a name is removed when
	// nothing of the employer is left there, the annotation is removed with CleanFinalizer.
	AdaptersAnnotation = "resource-consist.kusionstack.io/adapters"

	// HeldConditionPrefix is the prefix of the types of conditions, with status True, that have the same meaning in the
	// status of an employer kind with conditions, one for each name. A client that replaces the employer's metadata (a
	// PUT of a manifest) removes annotation and finalizer, but not these: a name in either of them counts. Writer and
	// lifetime: as AdaptersAnnotation.
	HeldConditionPrefix = "held.resource-consist.kusionstack.io/"

	// DrainSecondsAnnotation, on an employer, overrides Options.DrainTime for it.
	// Writer: the user. Format: whole seconds in decimal, at least 0; any other value counts as absent and is reported
	// by a Warning event. Lifetime: that of the employer.
	DrainSecondsAnnotation = "resource-consist.kusionstack.io/drain-seconds"
)

// Finalizer is the finalizer of an employer on its Pods: podops.ProtectionFinalizerPrefix, a slash, and characters 8 to
// 23 of the hexadecimal MD5 sum of the employer's name, as in resourceconsist v0.0.7.
func Finalizer(employerName string) string {
	sum := md5.Sum([]byte(employerName)) //nolint:gosec // see the import
	return podops.ProtectionFinalizerPrefix + "/" + hex.EncodeToString(sum[:])[8:24]
}

// EmployerKey is the key of an employer in the Pod's annotation of expected finalizers: "<Kind>/<namespace>/<name>".
func EmployerKey(kind string, employer client.ObjectKey) string {
	return kind + "/" + employer.Namespace + "/" + employer.Name
}

// LegacyCleanFinalizer is the form of CleanFinalizer in resourceconsist before v0.0.3. It is replaced wherever it is
// found, if CleanFinalizer is needed.
func LegacyCleanFinalizer(employerName string) string {
	return "resource-consist.kusionstack.io/clean-" + employerName
}

// Controlled reports whether the object has the label of objects that the suite manages.
func Controlled(object client.Object) bool {
	return object.GetLabels()[appsv1alpha1.ControlLabel] == appsv1alpha1.ControlValue
}

// ServiceSelector is the default Selector of adapters for Services: that of the Service, if it is Controlled. It is
// nil for a Service without a selector, whose endpoints are maintained by others, and for one of type ExternalName.
func ServiceSelector(service *corev1.Service) labels.Selector {
	if !Controlled(service) || len(service.Spec.Selector) == 0 || service.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	return labels.SelectorFromValidatedSet(service.Spec.Selector)
}

// DrainTime is the drain time of an employer: that of its annotation, or fallback. If the annotation is not valid, it
// returns fallback and an error with the remedy.
func DrainTime(employer client.Object, fallback time.Duration) (time.Duration, error) {
	raw, ok := employer.GetAnnotations()[DrainSecondsAnnotation]
	if !ok {
		return fallback, nil
	}
	seconds, err := strconv.ParseUint(raw, 10, 31)
	if err != nil {
		return fallback, fmt.Errorf("annotation %s is %q: give whole seconds, at least 0; %s counts until then",
			DrainSecondsAnnotation, raw, fallback)
	}
	return time.Duration(seconds) * time.Second, nil
}
