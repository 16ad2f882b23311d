package lifecycle

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
)

// lister answers with rules, and counts how often it is asked and by how many at a time.
type lister struct {
	client.Reader

	mu          sync.Mutex
	generations map[types.UID]int64
	asked       int
	atATime     int
	most        int
	begun       chan struct{} // gets a value when a list begins
	goOn        chan struct{} // a list ends with a value from here
}

func (l *lister) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	l.mu.Lock()
	l.asked++
	l.atATime++
	l.most = max(l.most, l.atATime)
	l.mu.Unlock()
	if l.begun != nil {
		l.begun <- struct{}{}
		<-l.goOn
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.atATime--
	for uid, generation := range l.generations {
		item := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: uid, Generation: generation}}
		metadata := list.(*metav1.PartialObjectMetadataList) //nolint:forcetypeassert // a test
		metadata.Items = append(metadata.Items, item)
	}
	return nil
}

func ruleAt(uid types.UID, generation int64) *appsv1alpha1.PodTransitionRule {
	return &appsv1alpha1.PodTransitionRule{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: string(uid), UID: uid, Generation: generation},
		Spec:       appsv1alpha1.PodTransitionRuleSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"other": "pods"}}},
	}
}

func TestNobodyGoesOutBeforeTheCacheShowsEveryRule(t *testing.T) {
	for name, tc := range map[string]struct {
		served map[types.UID]int64
		goes   bool
	}{
		"a rule that the cache does not have yet":      {served: map[types.UID]int64{"known": 2, "new": 1}},
		"a rule of which the cache has an older state": {served: map[types.UID]int64{"known": 3}},
		"nothing new":                {served: map[types.UID]int64{"known": 2}, goes: true},
		"a rule that is gone since":  {served: nil, goes: true},
		"an answer older than cache": {served: map[types.UID]int64{"known": 1}, goes: true},
	} {
		t.Run(name, func(t *testing.T) {
			r, c := newReconciler(t, &mapperFor{}, interceptor.Funcs{}, beginning(), ruleAt("known", 2))
			r.rules.newest = newRuleFreshness(&lister{generations: tc.served})
			result, err := reconcilePod(t, r)
			require.NoError(t, err)
			pod := &corev1.Pod{}
			require.NoError(t, c.Get(t.Context(), key, pod))
			assert.Equal(t, tc.goes, podops.Offline(podops.Read(pod)))
			assert.Equal(t, tc.goes, result.RequeueAfter != cacheLag, "it looks again soon")
		})
	}
}

func TestNoListWithoutAnOperationThatGoesOn(t *testing.T) {
	direct := &lister{}
	r, _ := newReconciler(t, &mapperFor{}, interceptor.Funcs{}, servingPod())
	r.rules.newest = newRuleFreshness(direct)
	for range 3 {
		_, err := reconcilePod(t, r)
		require.NoError(t, err)
	}
	assert.Zero(t, direct.asked)
}

// asking has Pods ask one lister about a namespace.
type asking struct {
	*testing.T
	lister  *lister
	newest  *ruleFreshness
	pending sync.WaitGroup
}

func newAsking(t *testing.T) *asking {
	direct := &lister{generations: map[types.UID]int64{"a": 1}, begun: make(chan struct{}, 100),
		goOn: make(chan struct{}, 100)}
	return &asking{T: t, lister: direct, newest: newRuleFreshness(direct)}
}

func (a *asking) ask() {
	a.pending.Go(func() {
		generations, err := a.newest.generations(a.Context(), "default")
		assert.NoError(a, err)
		assert.Equal(a, map[types.UID]int64{"a": 1}, generations)
	})
}

// TestManyShareTheNextList has many ask while a list is under way: all of them need a later one, and one is enough.
func TestManyShareTheNextList(t *testing.T) {
	a := newAsking(t)
	a.ask()
	<-a.lister.begun
	for range 50 {
		a.ask()
	}
	done := make(chan struct{})
	go func() { a.pending.Wait(); close(done) }()
	for range 100 {
		a.lister.goOn <- struct{}{}
	}
	select {
	case <-done: // the next may begin as soon as none is under way
	case <-time.After(time.Minute):
		t.Fatal("somebody has no answer")
	}
	assert.GreaterOrEqual(t, a.lister.asked, 2, "whoever asks while a list is under way needs a later one")
	assert.Equal(t, 1, a.lister.most, "one at a time")
}

// TestWhoGoesAwayDoesNotHoldUpOthers: one that was to begin the next list goes away.
func TestWhoGoesAwayDoesNotHoldUpOthers(t *testing.T) {
	a := newAsking(t)
	a.ask()
	<-a.lister.begun
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, err := a.newest.generations(ctx, "default")
		left <- err
	}()
	cancel()
	require.ErrorIs(t, <-left, context.Canceled)
	a.ask()
	for range 10 {
		a.lister.goOn <- struct{}{}
	}
	a.pending.Wait()
	assert.GreaterOrEqual(t, a.lister.asked, 2)
	assert.Equal(t, 1, a.lister.most, "one at a time")
}

func TestAnErrorOfTheListHoldsThePod(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	failing := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return assert.AnError
		},
	}).Build()
	r, c := newReconciler(t, &mapperFor{}, interceptor.Funcs{}, beginning())
	r.rules.newest = newRuleFreshness(failing)
	_, err := reconcilePod(t, r)
	require.ErrorIs(t, err, assert.AnError)
	pod := &corev1.Pod{}
	require.NoError(t, c.Get(t.Context(), key, pod))
	assert.False(t, podops.Offline(podops.Read(pod)))
}
