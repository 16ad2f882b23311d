package podtransitionrule

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/freeze"
	"kusionstack.io/kuperator/internal/freshness"
	"kusionstack.io/kuperator/internal/podcache"
	"kusionstack.io/kuperator/internal/podtransitionrule/grants"
)

func fakeClient(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, appsv1alpha1.AddToScheme(scheme))
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(funcs).Build()
}

func namespaceWith(name string, annotations ...string) *corev1.Namespace {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}}}
	for i := 0; i < len(annotations); i += 2 {
		ns.Annotations[annotations[i]] = annotations[i+1]
	}
	return ns
}

func TestAReasonIsShownInPartIfItIsLong(t *testing.T) {
	for why, want := range map[string]string{
		"night":                        "night",
		" ":                            "no reason given",
		strings.Repeat("n", 5000):      strings.Repeat("n", longestReason-3) + "...",
		"n" + strings.Repeat("ä", 200): "n" + strings.Repeat("ä", 126) + "...",
	} {
		assert.Equal(t, want, frozen(freeze.State{Known: true, Frozen: true, Why: why}))
	}
	assert.Empty(t, frozen(freeze.State{Known: true}))
}

func TestANamespaceIsConcernedByItsOwnAndAllByTheSuites(t *testing.T) {
	rule := &appsv1alpha1.PodTransitionRule{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "r"}}
	r := &reconciler{client: fakeClient(t, interceptor.Funcs{}, rule)}
	assert.Equal(t, []reconcile.Request{request("other")}, r.concerned(t.Context(), "other"))
	assert.Equal(t, []reconcile.Request{request("web")}, r.concerned(t.Context(), ""), "only those with rules")
}

func TestNothingIsDecidedInANamespaceThatTheCacheDoesNotHave(t *testing.T) {
	c := fakeClient(t, interceptor.Funcs{}, namespaceWith("home"))
	r := &reconciler{client: c, owners: newOwners(c, c.RESTMapper(), clocktesting.NewFakePassiveClock(time.Unix(1, 0))),
		freeze: &freeze.Namespaces{Cached: c, Suite: "home"}}
	r.owners.watched.Store(true)
	_, err := r.snapshot(t.Context(), "web", observed{})
	require.ErrorIs(t, err, errNamespaceUnknown)
}

func TestNodesAreWatchedWhenARuleNeedsThem(t *testing.T) {
	watches, fails := 0, errors.New("not yet")
	n := &nodes{
		client: fakeClient(t, interceptor.Funcs{},
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"zone": "a"}}}),
		watch: func() error { watches++; return fails },
	}
	rule := &appsv1alpha1.PodTransitionRule{}
	all, err := n.labels(t.Context(), []*appsv1alpha1.PodTransitionRule{rule})
	require.NoError(t, err)
	require.Nil(t, all)
	require.Zero(t, watches)

	rule.Spec.Rules = []appsv1alpha1.TransitionRule{{TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{
		AvailablePolicy: &appsv1alpha1.AvailableRule{Groups: &appsv1alpha1.GroupBudget{GroupKey: "group"}},
	}}}
	all, err = n.labels(t.Context(), []*appsv1alpha1.PodTransitionRule{rule})
	require.NoError(t, err)
	require.Nil(t, all)
	require.Zero(t, watches, "groups need none")

	rule.Spec.Rules = []appsv1alpha1.TransitionRule{{TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{
		AvailablePolicy: &appsv1alpha1.AvailableRule{Topology: &appsv1alpha1.TopologyBudget{TopologyKey: "zone"}},
	}}}
	_, err = n.labels(t.Context(), []*appsv1alpha1.PodTransitionRule{rule})
	require.ErrorIs(t, err, fails)
	fails = nil
	for range 2 {
		all, err = n.labels(t.Context(), []*appsv1alpha1.PodTransitionRule{rule})
		require.NoError(t, err)
		require.Equal(t, map[string]map[string]string{"n": {"zone": "a"}}, all)
	}
	require.Equal(t, 2, watches, "once after it failed, and not again")
}

func TestWritesOfMirroredBudgets(t *testing.T) {
	spec := func(n int32) *policyv1.PodDisruptionBudgetSpec {
		return &policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(n)),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}
	}
	existing := func() *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "there"},
			Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(1)),
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"old": "yes"}}},
		}
	}
	got := func(c client.Client) *policyv1.PodDisruptionBudget {
		o := &policyv1.PodDisruptionBudget{}
		require.NoError(t, client.IgnoreNotFound(c.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "web"}, o)))
		return o
	}
	t.Run("one that is missing is made, owned by its rule", func(t *testing.T) {
		r := &reconciler{client: fakeClient(t, interceptor.Funcs{})}
		change := grants.BudgetChange{Name: "web", Rule: "rule-uid", Spec: spec(3)}
		require.NoError(t, r.mirror(t.Context(), "ns", []grants.BudgetChange{change}))
		o := got(r.client)
		require.Equal(t, *spec(3), o.Spec)
		owner := metav1.GetControllerOf(o)
		require.Equal(t, []any{types.UID("rule-uid"), "PodTransitionRule", "apps.kusionstack.io/v1alpha1"},
			[]any{owner.UID, owner.Kind, owner.APIVersion})
		require.NoError(t, r.mirror(t.Context(), "ns", []grants.BudgetChange{change}),
			"the cache was behind: that is no error")
	})
	t.Run("one that is there gets its whole spec", func(t *testing.T) {
		r := &reconciler{client: fakeClient(t, interceptor.Funcs{}, existing())}
		require.NoError(t, r.mirror(t.Context(), "ns", []grants.BudgetChange{{Name: "web", UID: "there", Spec: spec(2)}}))
		require.Equal(t, *spec(2), got(r.client).Spec)
	})
	t.Run("one that is not wanted is deleted, and no other of the name", func(t *testing.T) {
		var preconditions *metav1.Preconditions
		r := &reconciler{client: fakeClient(t,
			interceptor.Funcs{Delete: func(ctx context.Context, c client.WithWatch, o client.Object,
				opts ...client.DeleteOption) error {
				preconditions = (&client.DeleteOptions{}).ApplyOptions(opts).Preconditions
				return c.Delete(ctx, o, opts...)
			}}, existing())}
		seen := got(r.client)
		taken := seen.DeepCopy()
		taken.Labels = map[string]string{"taken": "over"}
		require.NoError(t, r.client.Update(t.Context(), taken))
		change := []grants.BudgetChange{{Name: "web", UID: "there", ResourceVersion: seen.ResourceVersion}}
		require.ErrorContains(t, r.mirror(t.Context(), "ns", change), "mirroring podtransitionrule ns/web",
			"somebody made it his own meanwhile, and nothing else makes the rule look again")
		seen = got(r.client)
		require.Equal(t, "web", seen.Name)
		change[0].ResourceVersion = seen.ResourceVersion
		require.NoError(t, r.mirror(t.Context(), "ns", change))
		require.Empty(t, got(r.client).Name)
		require.Equal(t, metav1.Preconditions{UID: ptr.To(types.UID("there")), ResourceVersion: &seen.ResourceVersion},
			*preconditions)
	})
	t.Run("errors name the rule, and the others are still written", func(t *testing.T) {
		r := &reconciler{client: fakeClient(t,
			interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object,
				opts ...client.CreateOption) error {
				if o.GetName() == "bad" {
					return errors.New("no right")
				}
				return c.Create(ctx, o, opts...)
			}})}
		err := r.mirror(t.Context(), "ns", []grants.BudgetChange{{Name: "bad", Spec: spec(1)}, {Name: "web", Spec: spec(1)}})
		require.ErrorContains(t, err, "mirroring podtransitionrule ns/bad: no right")
		require.Equal(t, "web", got(r.client).Name)
	})
	t.Run("nothing is loosened while what is to be kept instead is not written", func(t *testing.T) {
		for name, tc := range map[string]struct {
			err  error
			says string
		}{
			"refused":          {errors.New("no right"), "no right"},
			"there is one":     {apierrors.NewAlreadyExists(policyv1.Resource("poddisruptionbudgets"), "wide"), ""},
			"nothing is amiss": {},
		} {
			t.Run(name, func(t *testing.T) {
				r := &reconciler{client: fakeClient(t,
					interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object,
						opts ...client.CreateOption) error {
						if tc.err != nil {
							return tc.err
						}
						return c.Create(ctx, o, opts...)
					}}, existing())}
				seen := got(r.client)
				err := r.mirror(t.Context(), "ns", []grants.BudgetChange{
					{Name: "wide", Spec: spec(3)}, {Name: "web", UID: "there", ResourceVersion: seen.ResourceVersion, Loosens: true},
				})
				if tc.says == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, tc.says)
				}
				require.Equal(t, tc.err != nil, got(r.client).Name == "web", "the budget that is to go")
			})
		}
	})
}

func noteOf(i int, blocked, present map[string]string, stale ...string) grants.Note {
	return grants.Note{PodName: fmt.Sprintf("p%d", i), PodUID: types.UID(fmt.Sprintf("u%d", i)), Blocked: blocked,
		Present: present, Stale: stale}
}

func TestWhenAPodIsAnnotated(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	taken := func(a *annotator) []podNote {
		var all []podNote
		for len(a.queue) > 0 {
			n := <-a.queue
			n.written = nil
			all = append(all, n)
		}
		return all
	}
	blocked := []grants.Note{noteOf(0, map[string]string{"a": "no"}, nil)}
	t.Run("after a while of the same text, once", func(t *testing.T) {
		a, ns := newAnnotator(nil, 30*time.Second), &namespace{}
		assert.Equal(t, 30*time.Second, a.pass("ns", ns, blocked, now))
		assert.Equal(t, 10*time.Second, a.pass("ns", ns, blocked, now.Add(20*time.Second)))
		assert.Empty(t, taken(a))
		a.pass("ns", ns, blocked, now.Add(30*time.Second))
		assert.Equal(t, []podNote{{types.NamespacedName{Namespace: "ns", Name: "p0"}, "u0", map[string]string{"a": "no"},
			nil}}, taken(a))
		assert.Equal(t, 9*time.Second, a.pass("ns", ns, blocked, now.Add(31*time.Second)), "it is on its way")
		assert.Empty(t, taken(a))
		a.pass("ns", ns, blocked, now.Add(40*time.Second))
		assert.Len(t, taken(a), 1, "it got lost")
		assert.Zero(t, a.pass("ns", ns, []grants.Note{noteOf(0, map[string]string{"a": "no"}, map[string]string{"a": "no"})},
			now.Add(60*time.Second)))
	})
	t.Run("not again while the cache is behind what was written", func(t *testing.T) {
		a, ns := newAnnotator(nil, 30*time.Second), &namespace{}
		seen := func(version string, after time.Duration) []podNote {
			note := noteOf(0, map[string]string{"a": "no"}, nil)
			note.PodVersion = version
			a.pass("ns", ns, []grants.Note{note}, now.Add(after))
			return taken(a)
		}
		seen("5", 0)
		require.Len(t, seen("5", 30*time.Second), 1)
		ns.waiting["u0"].written.Store(ptr.To("7"))
		require.Empty(t, seen("5", 2*time.Minute), "the watch is not back since the API server restarted")
		require.Empty(t, seen("6", 2*time.Minute))
		require.Len(t, seen("8", 2*time.Minute), 1, "somebody has removed it since")
	})
	t.Run("another text begins anew", func(t *testing.T) {
		a, ns := newAnnotator(nil, 30*time.Second), &namespace{}
		a.pass("ns", ns, blocked, now)
		assert.Equal(t, 30*time.Second, a.pass("ns", ns, []grants.Note{noteOf(0, map[string]string{"a": "never"}, nil)},
			now.Add(29*time.Second)))
		a.pass("ns", ns, blocked, now.Add(30*time.Second))
		assert.Empty(t, taken(a))
	})
	t.Run("who did not wait for a moment begins anew", func(t *testing.T) {
		a, ns := newAnnotator(nil, 30*time.Second), &namespace{}
		a.pass("ns", ns, blocked, now)
		a.pass("ns", ns, nil, now.Add(10*time.Second))
		assert.Empty(t, ns.waiting, "nothing is remembered of it")
		assert.Equal(t, 30*time.Second, a.pass("ns", ns, blocked, now.Add(20*time.Second)))
	})
	t.Run("never with 0, but what is stale still goes", func(t *testing.T) {
		a, ns := newAnnotator(nil, 0), &namespace{}
		notes := []grants.Note{noteOf(0, map[string]string{"a": "no"}, nil),
			noteOf(1, nil, map[string]string{"a": "old"}, "a")}
		assert.Zero(t, a.pass("ns", ns, notes, now))
		assert.Equal(t, []podNote{{types.NamespacedName{Namespace: "ns", Name: "p1"}, "u1", map[string]string{"a": ""}, nil}},
			taken(a))
	})
	t.Run("many are written bit by bit, and nothing waits for them", func(t *testing.T) {
		a, ns := newAnnotator(nil, 0), &namespace{}
		var notes []grants.Note
		for i := range 100 {
			notes = append(notes, noteOf(i, nil, map[string]string{"a": "old"}, "a"))
		}
		assert.Equal(t, time.Second, a.pass("ns", ns, notes, now))
		assert.Len(t, taken(a), notesAtOnce)
		a.pass("ns", ns, notes, now.Add(time.Second))
		assert.Len(t, taken(a), 100-notesAtOnce)
	})
}

// listed reads Pods by a list.
type listed struct {
	*testing.T
	client.Reader
}

func (l listed) ByIndex(_, namespace string) ([]*podcache.Pod, error) {
	var list corev1.PodList
	err := l.List(l.Context(), &list, client.InNamespace(namespace))
	packed := make([]*podcache.Pod, len(list.Items))
	for i := range list.Items {
		packed[i] = podcache.Pack(&list.Items[i])
	}
	return packed, err
}

func TestNotesOfANamespaceWithoutRulesAreSwept(t *testing.T) {
	pod := func(name string, annotations map[string]string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name),
			Annotations: annotations}}
	}
	key := podops.RuleDetailPrefix + "/gone"
	clk := clocktesting.NewFakePassiveClock(time.Unix(1_700_000_000, 0))
	c := fakeClient(t, interceptor.Funcs{}, namespaceWith("ns"), pod("a", map[string]string{key: "old", "other": "kept"}),
		pod("b", map[string]string{"other": "kept"}))
	r, ns := &reconciler{client: c, cached: listed{t, c}, freeze: &freeze.Namespaces{Cached: c}, clock: clk,
		notes: newAnnotator(c, 0)}, &namespace{}
	sweep := func(later time.Duration) time.Duration {
		clk.SetTime(clk.Now().Add(later))
		wait, err := r.sweep(t.Context(), "ns", ns)
		require.NoError(t, err)
		return wait
	}
	require.Equal(t, noteAgain, sweep(0))
	require.Len(t, r.notes.queue, 1)
	require.Equal(t, noteAgain-time.Second, sweep(time.Second))
	require.Len(t, r.notes.queue, 1, "it is on its way")
	r.notes.write(t.Context(), <-r.notes.queue)
	require.Equal(t, noteAgain, sweep(time.Second), "another may have been on its way")
	require.Equal(t, noteAgain-time.Second, sweep(time.Second))
	require.False(t, r.atRest("ns"), "Pods that change are looked at as long as notes may come")
	require.Zero(t, sweep(noteAgain))
	require.True(t, r.atRest("ns"), "from here on Pods enqueue nothing")
	require.False(t, r.atRest("elsewhere"))
	require.NoError(t, c.Update(t.Context(), pod("b", map[string]string{key: "by somebody else"})))
	require.Zero(t, sweep(time.Second))
	require.Empty(t, r.notes.queue, "nobody looks again")
	require.NoError(t, c.Delete(t.Context(), namespaceWith("ns")))
	require.Zero(t, sweep(time.Second))
	_, remembered := r.cleanNamespaces.Load("ns")
	require.False(t, remembered, "nothing is remembered of a namespace that is gone")
}

func TestAnnotating(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u",
		Annotations: map[string]string{"a": "old", "b": "kept"}}}
	n := podNote{types.NamespacedName{Namespace: "ns", Name: "p"}, "u", map[string]string{"a": "", "c": "new"},
		&atomic.Pointer[string]{}}
	var patches []string
	fails := error(nil)
	c := fakeClient(t, interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, o client.Object,
		p client.Patch, opts ...client.PatchOption) error {
		data, err := p.Data(o)
		require.NoError(t, err)
		patches = append(patches, string(data))
		if fails != nil {
			return fails
		}
		return c.Patch(ctx, o, p, opts...)
	}}, pod)
	a := newAnnotator(c, time.Second)
	a.write(t.Context(), n)
	require.Equal(t, []string{`{"metadata":{"annotations":{"a":null,"c":"new"},"uid":"u"}}`}, patches)
	fresh := &corev1.Pod{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(pod), fresh))
	require.Equal(t, map[string]string{"b": "kept", "c": "new"}, fresh.Annotations)
	fails = errors.New("no right")
	a.write(t.Context(), n) // the error has no consequences
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- a.Start(ctx) }()
	a.queue <- n
	cancel()
	require.NoError(t, <-ended)
}

func TestTheNextDecisionWaitsForTheInterval(t *testing.T) {
	rules := make([]*appsv1alpha1.PodTransitionRule, 2)
	objects := make([]client.Object, len(rules))
	var plan grants.Plan
	for i := range rules {
		rules[i] = &appsv1alpha1.PodTransitionRule{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint(i),
			UID: types.UID(fmt.Sprint(i))}}
		objects[i] = rules[i].DeepCopy()
		plan.Statuses = append(plan.Statuses, grants.RuleStatus{Name: rules[i].Name, UID: rules[i].UID})
	}
	began := time.Now()
	clk := clocktesting.NewFakePassiveClock(began)
	var refused error
	c := fakeClient(t, interceptor.Funcs{SubResourceUpdate: func(context.Context, client.Client, string, client.Object,
		...client.SubResourceUpdateOption) error {
		clk.SetTime(clk.Now().Add(40 * time.Millisecond))
		return refused
	}}, objects...)
	r := &reconciler{client: c, clock: clk, writes: freshness.New(c, clk)}
	ns := &namespace{known: ownLedgers{}}
	apply := func(plan grants.Plan) error {
		clk.SetTime(began.Add(20 * time.Millisecond)) // to read and to decide
		return r.apply(t.Context(), request("ns"), ns, observed{rules: rules}, plan)
	}

	require.NoError(t, apply(grants.Plan{}))
	require.Equal(t, began.Add(20*time.Millisecond+interval), ns.next, "nothing was written")
	require.NoError(t, apply(plan))
	require.Equal(t, began.Add(100*time.Millisecond+interval), ns.next, "two writes of 40 ms")
	refused = errors.New("no")
	require.ErrorIs(t, apply(plan), refused)
	require.Equal(t, began.Add(60*time.Millisecond+interval), ns.next, "one that was refused")
}

func TestARuleThatIsGoneIsNotWrittenAgainWhileTheCacheHasIt(t *testing.T) {
	rule := &appsv1alpha1.PodTransitionRule{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "r", UID: "u"}}
	c := fakeClient(t, interceptor.Funcs{SubResourceUpdate: func(context.Context, client.Client, string, client.Object,
		...client.SubResourceUpdateOption) error {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "podtransitionrules"}, "r")
	}}, rule)
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(rule), rule))
	clk := clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0))
	r := &reconciler{client: c, clock: clk, writes: freshness.New(c, clk)}
	req := reconcile.Request{NamespacedName: types.NamespacedName{Name: "web"}}
	wait, err := r.writes.Unobserved(t.Context(), req.NamespacedName)
	require.NoError(t, err)
	require.Zero(t, wait)
	err = r.apply(t.Context(), req, &namespace{}, observed{rules: []*appsv1alpha1.PodTransitionRule{rule}},
		grants.Plan{Statuses: []grants.RuleStatus{{UID: "u", Name: "r"}}})
	require.True(t, apierrors.IsNotFound(errors.Unwrap(err)))
	wait, err = r.writes.Unobserved(t.Context(), req.NamespacedName)
	require.NoError(t, err)
	require.Positive(t, wait, "nothing is decided before the cache shows that it is gone")
	require.NoError(t, c.Delete(t.Context(), rule))
	wait, err = r.writes.Unobserved(t.Context(), req.NamespacedName)
	require.NoError(t, err)
	require.Zero(t, wait)
}
