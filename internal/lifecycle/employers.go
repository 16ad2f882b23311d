package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

const (
	// repairAfter is how long a Pod waits for a cooperator before its employer is looked up.
	repairAfter = 5 * time.Second
	// answerFor is how long an answer about an employer, or about kinds, holds.
	answerFor = 30 * time.Second
	// askAgain is the wait when another worker asks, or too much was asked already.
	askAgain = time.Second
	// lookUpWithin bounds one look at the API server.
	lookUpWithin = 5 * time.Second
	// answersKept bounds the memory of answers.
	answersKept = 1000
)

// EmployersRole is the ClusterRole to which others add the right to read their kinds.
const EmployersRole = "lifecycle-controller-employers"

// resources is the part of discovery that tells kinds.
type resources interface {
	ServerPreferredNamespacedResources() ([]*metav1.APIResourceList, error)
}

// employers looks up whether what a Pod is expected to be in still wants it. It
// reads objects of any kind, uncached, a few a second.
type employers struct {
	reader    client.Reader
	discovery resources
	clock     clock.PassiveClock
	limit     flowcontrol.PassiveRateLimiter

	mu      sync.Mutex
	answers *cache.LRUExpireCache // by key of the employer, nil while it is looked up
	kinds   map[string][]schema.GroupVersionKind
	kindsAt time.Time
	// kindsFailed is true if discovery did not tell of every group.
	kindsFailed bool
}

// answer is what is known of one employer. With an unknownReason nothing may be concluded;
// otherwise it wants the Pods that one of the selectors matches, of which there is
// none if it does not exist.
type answer struct {
	selectors     []labels.Selector
	unknownReason string
}

func newEmployers(mgr ctrl.Manager, clk clock.Clock) (*employers, error) {
	d, err := discovery.NewDiscoveryClientForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("preparing discovery: %w", err)
	}
	return &employers{
		reader: mgr.GetAPIReader(), discovery: d, clock: clk,
		limit:   flowcontrol.NewTokenBucketPassiveRateLimiter(5, 10),
		answers: cache.NewLRUExpireCacheWithClock(answersKept, clk),
	}, nil
}

// released reports whether the employer has let the Pod go: it does not exist, or it does not select it. unknownReason
// says why that cannot be known. With wait above zero there is no answer yet. Employers in other namespaces are not
// looked up: a user who may annotate a Pod would learn what is there.
func (e *employers) released(
	ctx context.Context, key string, v podops.View,
) (letGo bool, unknownReason string, wait time.Duration) {
	if parts := strings.Split(key, "/"); len(parts) == 3 && parts[1] != v.Namespace {
		return false, "it is in another namespace, where nothing is looked up", 0
	}
	a, wait := e.answer(ctx, key)
	if wait > 0 {
		return false, "", wait
	}
	for _, s := range a.selectors {
		if s.Matches(labels.Set(v.Labels)) {
			return false, "", 0
		}
	}
	return a.unknownReason == "", a.unknownReason, 0
}

// answer returns what is known of the employer, and asks if that is too old.
func (e *employers) answer(ctx context.Context, key string) (answer, time.Duration) {
	e.mu.Lock()
	known, isKnown := e.answers.Get(key)
	asks := !isKnown && e.limit.TryAccept()
	if asks {
		e.answers.Add(key, nil, lookUpWithin)
	}
	e.mu.Unlock()
	if a, isAnswer := known.(answer); isAnswer {
		return a, 0
	}
	if !asks {
		return answer{}, askAgain
	}
	ctx, cancel := context.WithTimeout(ctx, lookUpWithin)
	defer cancel()
	a := e.lookUp(ctx, key)
	e.answers.Add(key, a, answerFor)
	return a, 0
}

// lookUp asks the API server about every kind of this name.
func (e *employers) lookUp(ctx context.Context, key string) answer {
	parts := strings.Split(key, "/")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return answer{unknownReason: "its key is not <Kind>/<namespace>/<name>"}
	}
	kinds, complete := e.kindsCalled(parts[0])
	if len(kinds) == 0 {
		return answer{unknownReason: "the API server serves no kind of that name"}
	}
	var a answer
	if !complete {
		a.unknownReason = "the API server did not tell of all its kinds"
	}
	for _, kind := range kinds {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(kind)
		err := e.reader.Get(ctx, types.NamespacedName{Namespace: parts[1], Name: parts[2]}, object)
		switch {
		case apierrors.IsNotFound(err):
		case apierrors.IsForbidden(err):
			a.unknownReason = fmt.Sprintf("lifecycle-controller may not get %s, allow it in a ClusterRole that joins %s",
				kind.GroupKind(), EmployersRole)
		case err != nil:
			ctrl.LoggerFrom(ctx).Error(err, "looking up an employer", "employer", key)
			a.unknownReason = "looking it up failed"
		default:
			selector, unknownReason := selectorOf(object)
			if unknownReason != "" {
				a.unknownReason = unknownReason
			} else {
				a.selectors = append(a.selectors, selector)
			}
		}
	}
	return a
}

// kindsCalled returns the kinds of that name in all groups. Service means the one
// of Kubernetes: another group's is not what resourceconsist-controller, or
// upstream's, writes under that name. complete is false if a group did not answer.
func (e *employers) kindsCalled(name string) (kinds []schema.GroupVersionKind, complete bool) {
	if name == "Service" {
		return []schema.GroupVersionKind{{Version: "v1", Kind: "Service"}}, true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.clock.Now()
	age := now.Sub(e.kindsAt)
	// A kind that is not there may be new: no Pod is looked at sooner than repairAfter.
	if e.kinds == nil || age >= answerFor || (len(e.kinds[name]) == 0 && age >= repairAfter) {
		e.kindsAt = now
		lists, err := e.discovery.ServerPreferredNamespacedResources()
		e.kindsFailed = err != nil
		e.kinds = kindsByName(lists)
	}
	return e.kinds[name], !e.kindsFailed
}

func kindsByName(lists []*metav1.APIResourceList) map[string][]schema.GroupVersionKind {
	kinds := map[string][]schema.GroupVersionKind{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		for i := range list.APIResources {
			r := &list.APIResources[i]
			if !strings.Contains(r.Name, "/") && r.Namespaced {
				kinds[r.Kind] = append(kinds[r.Kind], gv.WithKind(r.Kind))
			}
		}
	}
	return kinds
}

// selectorOf reads spec.selector, a map of labels or a label selector. A Service
// that is not under the suite's control any more selects nothing.
func selectorOf(object *unstructured.Unstructured) (selector labels.Selector, unknownReason string) {
	gk := object.GroupVersionKind().GroupKind()
	if gk == (schema.GroupKind{Kind: "Service"}) &&
		object.GetLabels()[appsv1alpha1.ControlLabel] != appsv1alpha1.ControlValue {
		return labels.Nothing(), ""
	}
	const none = "it has no spec.selector to judge by"
	raw, found, err := unstructured.NestedMap(object.Object, "spec", "selector")
	if err != nil || !found || len(raw) == 0 {
		return nil, none
	}
	if set, _, err := unstructured.NestedStringMap(object.Object, "spec", "selector"); err == nil {
		return labels.SelectorFromSet(set), ""
	}
	var s metav1.LabelSelector
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(raw, &s, true); err != nil {
		return nil, none
	}
	selector, err = metav1.LabelSelectorAsSelector(&s)
	if err != nil {
		return nil, none
	}
	return selector, ""
}

// repair takes expected finalizers off a Pod that has waited for them for a while
// and whose employers have let it go. It returns the change, what is known of the
// others, and when to look again; zero if there is nothing to look for.
func (e *employers) repair(
	ctx context.Context, v podops.View, since, now time.Time,
) (forget podops.Change, notes map[string]string, again time.Duration, err error) {
	if since.IsZero() || !waitsForEmployers(v) {
		return podops.Change{}, nil, 0, nil
	}
	if waited := now.Sub(since); waited < repairAfter {
		return podops.Change{}, nil, repairAfter - waited, nil
	}
	again = answerFor
	var errs []error
	for _, key := range podops.MissingEmployers(v) {
		letGo, unknownReason, wait := e.released(ctx, key, v)
		switch {
		case wait > 0:
			again = min(again, wait)
		case unknownReason != "":
			if notes == nil {
				notes = map[string]string{}
			}
			notes[key] = unknownReason
		case letGo:
			one, err := podops.Forget(forget.Apply(v), key, now)
			errs = append(errs, err)
			forget = forget.Then(v, one)
		}
	}
	return forget, notes, again, errors.Join(errs...)
}
