package podops

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// MustLeave reports whether a cooperator must remove the Pod from what it maintains: the Pod is going out of service,
// or is gone.
func MustLeave(v View) bool {
	return v.Terminating || v.Terminal || v.ServiceReady == corev1.ConditionFalse || Offline(v)
}

// MayJoin reports whether a cooperator may bring the Pod back: it is Ready, and nothing keeps it out of service.
func MayJoin(v View) bool {
	return v.Ready && !MustLeave(v)
}

// Expect announces that the Pod does not count as serving without the employer's finalizer. employer is
// "<Kind>/<namespace>/<name>". The Change is zero if that is announced already. An annotation that is not valid is an
// error, and is not changed.
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

// Forget removes the announcement, with the steps that follow: a Pod that waited only for this employer is in service.
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

// Join adds the cooperator's finalizer to the Pod, which has been brought back, with the steps that follow: the last
// cooperator to join completes the operations that waited.
func Join(v View, finalizer string, now time.Time) Change {
	if v.Terminating || slices.Contains(v.Finalizers, finalizer) {
		return Change{}
	}
	join := Change{Finalizers: append(slices.Clone(v.Finalizers), finalizer), FinalizersChanged: true}
	return join.Then(v, Structural(join.Apply(v), now))
}

// Leave removes the cooperator's finalizer from the Pod, which has been taken out, with the steps that follow: after
// the last cooperator to leave, the operator may act.
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
