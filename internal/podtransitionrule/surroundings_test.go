package podtransitionrule

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
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
	"kusionstack.io/kuperator/internal/bootstrap"
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
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(collaSetKind, meta.RESTScopeNamespace)
	kind := bootstrap.NewKind(mapper, collaSetKind, clocktesting.NewFakePassiveClock(time.Unix(9, 0)))
	r := &reconciler{client: c, owners: &owners{c, kind}, freeze: &freeze.Namespaces{Cached: c, Suite: "home"}}
	_, err := r.snapshot(t.Context(), "web", observed{})
	require.ErrorIs(t, err, errCollaSetsUnknown, "they are served, but not watched yet")
	kind.Known()
	_, err = r.snapshot(t.Context(), "web", observed{})
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

// annotating is a reconciler whose client keeps what is written on Pods, by their names, and gives them this version.
func annotating(t *testing.T, after time.Duration, version string) (r *reconciler, taken func() map[string]string) {
	t.Helper()
	var mu sync.Mutex
	written := map[string]string{}
	c := fakeClient(t, interceptor.Funcs{Patch: func(_ context.Context, _ client.WithWatch, o client.Object,
		p client.Patch, _ ...client.PatchOption) error {
		data, err := p.Data(o)
		mu.Lock()
		defer mu.Unlock()
		written[o.GetName()] += string(data)
		o.SetResourceVersion(version)
		return err
	}})
	clk := clocktesting.NewFakePassiveClock(time.Unix(1_700_000_000, 0))
	return &reconciler{client: c, clock: clk, annotateAfter: after}, func() map[string]string {
		defer func() { written = map[string]string{} }()
		return written
	}
}

func TestWhenAPodIsAnnotated(t *testing.T) {
	blocked := []grants.Note{noteOf(0, map[string]string{"a": "no"}, nil)}
	const half = 30 * time.Second
	// at makes a pass so long after the start.
	at := func(t *testing.T, r *reconciler, ns *namespace, after time.Duration, notes ...grants.Note) time.Duration {
		r.clock.(*clocktesting.FakePassiveClock).SetTime(time.Unix(1_700_000_000, 0).Add(after))
		return r.annotate(t.Context(), "ns", ns, notes)
	}
	t.Run("after a while of the same text, once", func(t *testing.T) {
		r, taken := annotating(t, half, "")
		ns := &namespace{}
		assert.Equal(t, half, at(t, r, ns, 0, blocked...))
		assert.Equal(t, 10*time.Second, at(t, r, ns, 20*time.Second, blocked...))
		assert.Empty(t, taken())
		at(t, r, ns, half, blocked...)
		assert.Equal(t, map[string]string{"p0": `{"metadata":{"annotations":{"a":"no"},"uid":"u0"}}`}, taken())
		assert.Equal(t, 9*time.Second, at(t, r, ns, 31*time.Second, blocked...), "its answer may have been lost")
		assert.Empty(t, taken())
		at(t, r, ns, 40*time.Second, blocked...)
		assert.Len(t, taken(), 1, "it got lost")
		assert.Zero(t, at(t, r, ns, time.Minute, noteOf(0, map[string]string{"a": "no"}, map[string]string{"a": "no"})))
	})
	t.Run("not again while the cache is behind what was written", func(t *testing.T) {
		r, taken := annotating(t, half, "7")
		ns, note := &namespace{}, noteOf(0, map[string]string{"a": "no"}, nil)
		seen := func(version string, after time.Duration) map[string]string {
			note.PodVersion = version
			at(t, r, ns, after, note)
			return taken()
		}
		seen("5", 0)
		require.Len(t, seen("5", half), 1)
		require.Empty(t, seen("5", 2*time.Minute), "the watch is not back since the API server restarted")
		require.Empty(t, seen("6", 2*time.Minute))
		require.Len(t, seen("8", 2*time.Minute), 1, "it was removed since")
	})
	t.Run("another text begins again", func(t *testing.T) {
		r, taken := annotating(t, half, "")
		ns := &namespace{}
		at(t, r, ns, 0, blocked...)
		assert.Equal(t, half, at(t, r, ns, half-time.Second, noteOf(0, map[string]string{"a": "never"}, nil)))
		at(t, r, ns, half, blocked...)
		assert.Empty(t, taken())
	})
	t.Run("what did not wait for a moment begins again", func(t *testing.T) {
		r, _ := annotating(t, half, "")
		ns := &namespace{}
		at(t, r, ns, 0, blocked...)
		at(t, r, ns, 10*time.Second)
		assert.Empty(t, ns.waiting, "nothing is remembered of it")
		assert.Equal(t, half, at(t, r, ns, 20*time.Second, blocked...))
	})
	t.Run("never with 0, but what is stale still goes", func(t *testing.T) {
		r, taken := annotating(t, 0, "")
		assert.Zero(t, at(t, r, &namespace{}, 0, blocked[0], noteOf(1, nil, map[string]string{"a": "old"}, "a")))
		assert.Equal(t, map[string]string{"p1": `{"metadata":{"annotations":{"a":null},"uid":"u1"}}`}, taken())
	})
	t.Run("many are written bit by bit", func(t *testing.T) {
		r, taken := annotating(t, 0, "")
		ns := &namespace{}
		var notes []grants.Note
		for i := range 100 {
			notes = append(notes, noteOf(i, nil, map[string]string{"a": "old"}, "a"))
		}
		assert.Equal(t, time.Second, at(t, r, ns, 0, notes...))
		assert.Len(t, taken(), notesAtOnce)
		at(t, r, ns, time.Second, notes...)
		assert.Len(t, taken(), 100-notesAtOnce)
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
	r, ns := &reconciler{client: c, cached: listed{t, c}, freeze: &freeze.Namespaces{Cached: c}, clock: clk}, &namespace{}
	sweep := func(later time.Duration) time.Duration {
		clk.SetTime(clk.Now().Add(later))
		wait, err := r.sweep(t.Context(), "ns", ns)
		require.NoError(t, err)
		return wait
	}
	require.Equal(t, noteAgain, sweep(0))
	left := &corev1.Pod{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "a"}, left))
	require.Equal(t, map[string]string{"other": "kept"}, left.Annotations)
	require.Equal(t, noteAgain, sweep(time.Second), "one of the leader before may be on its way")
	require.Equal(t, noteAgain-time.Second, sweep(time.Second))
	require.False(t, r.atRest("ns"), "Pods that change are looked at as long as notes may come")
	require.Zero(t, sweep(noteAgain))
	require.True(t, r.atRest("ns"), "from here on Pods enqueue nothing")
	require.False(t, r.atRest("elsewhere"))
	require.NoError(t, c.Update(t.Context(), pod("b", map[string]string{key: "by another"})))
	require.Zero(t, sweep(time.Second))
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "b"}, left))
	require.Contains(t, left.Annotations, key, "it is not looked at again")
	require.NoError(t, c.Delete(t.Context(), namespaceWith("ns")))
	require.Zero(t, sweep(time.Second))
	require.False(t, r.atRest("ns"), "nothing is remembered of a namespace that is gone")
}

func TestANoteThatIsNotWrittenHasNoConsequences(t *testing.T) {
	for name, fails := range map[string]error{
		"refused": errors.New("no right"),
		"gone":    apierrors.NewNotFound(corev1.Resource("pods"), "p"),
	} {
		t.Run(name, func(t *testing.T) {
			c := fakeClient(t, interceptor.Funcs{Patch: func(context.Context, client.WithWatch, client.Object, client.Patch,
				...client.PatchOption) error {
				return fails
			}})
			r, ns := &reconciler{client: c, clock: clocktesting.NewFakePassiveClock(time.Unix(1, 0))}, &namespace{}
			stale := []grants.Note{noteOf(0, nil, map[string]string{"a": "old"}, "a")}
			require.Zero(t, r.annotate(t.Context(), "ns", ns, stale))
			require.Empty(t, ns.waiting["u0"].written)
			require.Equal(t, noteAgain, r.annotate(t.Context(), "ns", ns, stale), "it is tried again")
		})
	}
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
