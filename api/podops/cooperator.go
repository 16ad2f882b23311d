package podops

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// MustLeave reports whether a cooperator has to take the Pod out of what it keeps:
// the Pod is on its way out of service, or gone.
func MustLeave(v View) bool {
	return v.Terminating || v.Terminal || v.ServiceReady == corev1.ConditionFalse || Offline(v)
}

// MayJoin reports whether a cooperator may bring the Pod back: it is Ready and
// nothing keeps it out of service.
func MayJoin(v View) bool {
	return v.Ready && !MustLeave(v)
}

// Expect announces that the Pod does not count as serving without the
// employer's finalizer. employer is "<Kind>/<namespace>/<name>". It changes
// nothing if that is announced already; a value that cannot be read is an error
// and stays as it is.
func Expect(v View, employer, finalizer string) (Change, error) {
	expected, err := ExpectedFinalizers(v.Annotations)
	if err != nil {
		return Change{}, err
	}
	if expected[employer] == finalizer {
		return Change{}, nil
	}
	next := maps.Clone(expected)
	if next == nil {
		next = map[string]string{}
	}
	next[employer] = finalizer
	return annotate(next), nil
}

// Forget takes the announcement back, with what follows: a Pod that waited for
// this employer alone is in service.
func Forget(v View, employer string, now time.Time) (Change, error) {
	expected, err := ExpectedFinalizers(v.Annotations)
	if err != nil {
		return Change{}, err
	}
	if _, ok := expected[employer]; !ok {
		return Change{}, nil
	}
	next := maps.Clone(expected)
	delete(next, employer)
	forget := annotate(next)
	return forget.Then(v, Structural(forget.Apply(v), now)), nil
}

func annotate(expected map[string]string) Change {
	value := string(mustMarshal(availableConditions{ExpectedFinalizers: expected}))
	return Change{Annotations: map[string]*string{AvailableConditionsAnnotation: &value}}
}

// Join puts the cooperator's finalizer on the Pod, which has been brought back,
// with what follows: the last one to join completes the operations that waited.
func Join(v View, finalizer string, now time.Time) Change {
	if v.Terminating || slices.Contains(v.Finalizers, finalizer) {
		return Change{}
	}
	join := Change{Finalizers: append(slices.Clone(v.Finalizers), finalizer), FinalizersChanged: true}
	return join.Then(v, Structural(join.Apply(v), now))
}

// Leave removes the cooperator's finalizer from the Pod, which has been taken
// out, with what follows: the last one to leave lets the operator act.
func Leave(v View, finalizer string, now time.Time) Change {
	if !slices.Contains(v.Finalizers, finalizer) {
		return Change{}
	}
	leave := Change{
		Finalizers:        slices.DeleteFunc(slices.Clone(v.Finalizers), func(f string) bool { return f == finalizer }),
		FinalizersChanged: true,
	}
	return leave.Then(v, Structural(leave.Apply(v), now))
}
