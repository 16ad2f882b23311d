package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/insight"
)

const (
	// redrawAfter gathers changes that come together.
	redrawAfter = 500 * time.Millisecond
	// refreshEvery is how often it is drawn although nothing came: ages grow, and Leases get stale in silence.
	refreshEvery = 10 * time.Second
)

// live keeps the facts of a namespace by watches.
type live struct {
	s         *session
	namespace string
	facts     insight.Facts // as first read, with what may not be
	slow      insight.Facts // Namespaces and nodes, read again every refreshEvery
	pods      cache.Store
	sets      cache.Store
	rules     cache.Store
	jobs      cache.Store
	// decorations are the PodDecorations.
	decorations cache.Store
	leases      cache.Store
	changed     chan struct{}
}

// source is one kind that is watched.
type source struct {
	store   *cache.Store
	example runtime.Object
	list    func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch   func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

func (l *live) sources() []source {
	core, suite, leases := l.s.kube.CoreV1(), l.s.suite.AppsV1alpha1(), l.s.kube.CoordinationV1().Leases(l.s.system)
	managed := func(o metav1.ListOptions) metav1.ListOptions {
		o.LabelSelector = managedPods
		return o
	}
	return []source{
		{&l.pods, &corev1.Pod{}, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return core.Pods(l.namespace).List(ctx, managed(o))
		}, func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return core.Pods(l.namespace).Watch(ctx, managed(o))
		}},
		{&l.sets, &appsv1alpha1.CollaSet{}, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return suite.CollaSets(l.namespace).List(ctx, o)
		}, func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return suite.CollaSets(l.namespace).Watch(ctx, o)
		}},
		{&l.rules, &appsv1alpha1.PodTransitionRule{},
			func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return suite.PodTransitionRules(l.namespace).List(ctx, o)
			}, func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return suite.PodTransitionRules(l.namespace).Watch(ctx, o)
			}},
		{&l.jobs, &appsv1alpha1.OperationJob{},
			func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return suite.OperationJobs(l.namespace).List(ctx, o)
			}, func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return suite.OperationJobs(l.namespace).Watch(ctx, o)
			}},
		{&l.decorations, &appsv1alpha1.PodDecoration{},
			func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return suite.PodDecorations(l.namespace).List(ctx, o)
			}, func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return suite.PodDecorations(l.namespace).Watch(ctx, o)
			}},
		{&l.leases, &coordinationv1.Lease{}, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return leases.List(ctx, o)
		}, func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return leases.Watch(ctx, o)
		}},
	}
}

// readable says which kinds the first reading could read: a watch on what is forbidden would be tried for ever.
func (l *live) readable(s source) bool {
	for _, g := range l.facts.Gaps {
		switch {
		case strings.HasPrefix(g.What, "collasets.") && s.store == &l.sets,
			strings.HasPrefix(g.What, "podtransitionrules.") && s.store == &l.rules,
			strings.HasPrefix(g.What, jobsResource) && s.store == &l.jobs,
			strings.HasPrefix(g.What, decorationsResource) && s.store == &l.decorations,
			strings.HasPrefix(g.What, "leases.") && s.store == &l.leases:
			return false
		}
	}
	return true
}

// start begins the watches and waits until each has been listed.
func (l *live) start(ctx context.Context) error {
	var synced []cache.InformerSynced
	wakeUp := func(any) {
		select {
		case l.changed <- struct{}{}:
		default:
		}
	}
	for _, s := range l.sources() {
		if !l.readable(s) {
			continue
		}
		lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{ListWithContextFunc: s.list,
			WatchFuncWithContext: s.watch}, l.s.kube)
		handler := cache.ResourceEventHandlerFuncs{AddFunc: wakeUp, UpdateFunc: func(_, now any) { wakeUp(now) },
			DeleteFunc: wakeUp}
		if s.store == &l.leases {
			handler = cache.ResourceEventHandlerFuncs{} // they are renewed all the time
		}
		store, controller := cache.NewInformerWithOptions(cache.InformerOptions{ListerWatcher: lw, ObjectType: s.example,
			Handler: handler})
		*s.store = store
		synced = append(synced, controller.HasSynced)
		go controller.RunWithContext(ctx)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return context.Cause(ctx)
	}
	return nil
}

// refresh reads what is not watched.
func (l *live) refresh(ctx context.Context) error {
	l.slow = insight.Facts{Pods: l.now().Pods}
	return errors.Join(l.s.readNamespaces(ctx, l.namespace, &l.slow), l.s.readNodes(ctx, l.namespace, &l.slow))
}

// now are the facts as the watches show them.
func (l *live) now() insight.Facts {
	f := insight.Facts{Now: l.s.now(), System: l.s.system, Namespaces: l.slow.Namespaces,
		NamespaceLabels: l.slow.NamespaceLabels, Nodes: l.slow.Nodes, Gaps: slices.Clone(l.slow.Gaps),
		LeasesKnown: l.leases != nil}
	collect(l.pods, func(pod *corev1.Pod) { f.Pods = append(f.Pods, *pod) })
	collect(l.sets, func(set *appsv1alpha1.CollaSet) { f.CollaSets = append(f.CollaSets, *set) })
	collect(l.rules, func(r *appsv1alpha1.PodTransitionRule) { f.Rules = append(f.Rules, *r) })
	collect(l.jobs, func(job *appsv1alpha1.OperationJob) { f.Jobs = append(f.Jobs, *job) })
	collect(l.decorations, func(d *appsv1alpha1.PodDecoration) { f.Decorations = append(f.Decorations, *d) })
	collect(l.leases, func(lease *coordinationv1.Lease) { f.Leases = append(f.Leases, *lease) })
	for _, g := range l.facts.Gaps {
		for _, watched := range []string{"collasets.", "podtransitionrules.", jobsResource, decorationsResource, "leases."} {
			if strings.HasPrefix(g.What, watched) {
				f.Gaps = append(f.Gaps, g)
			}
		}
	}
	return f
}

func collect[T any](store cache.Store, f func(T)) {
	if store == nil {
		return
	}
	for _, o := range store.List() {
		if item, ok := o.(T); ok {
			f(item)
		}
	}
}

// watch draws the fleet again whenever it changes, until its context ends.
func (p *plugin) watch(ctx context.Context, s *session, namespace string, o statusOptions) error {
	drawn := ""
	return s.follow(ctx, namespace, func(fleet insight.Fleet) error {
		fleet, err := o.pick(fleet)
		if err != nil {
			return err
		}
		drawn, err = p.draw(fleet, o, drawn)
		return err
	})
}

// follow calls seen with the fleet of a namespace (empty: of the cluster) and again whenever it may have changed, until
// ctx ends or seen fails.
func (s *session) follow(ctx context.Context, namespace string, seen func(insight.Fleet) error) error {
	return s.followFacts(ctx, namespace, func(facts insight.Facts) error { return seen(insight.Describe(facts)) })
}

// followFacts is follow with the facts of which the fleet is described.
func (s *session) followFacts(ctx context.Context, namespace string, seen func(insight.Facts) error) error {
	first, err := s.facts(ctx, namespace) // says what may not be read
	if err != nil {
		return err
	}
	l := &live{s: s, namespace: namespace, facts: first, changed: make(chan struct{}, 1)}
	if err := l.start(ctx); err != nil {
		return err
	}
	refresh := s.clock.NewTicker(refreshEvery)
	defer refresh.Stop()
	if err := l.refresh(ctx); err != nil {
		return err
	}
	for {
		if err := seen(l.now()); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-refresh.C():
			if err := l.refresh(ctx); err != nil {
				return err
			}
		case <-l.changed:
			select {
			case <-ctx.Done():
				return nil
			case <-s.clock.After(redrawAfter):
			}
		}
	}
}

// draw writes the fleet: on a terminal over what was there, elsewhere only if something but ages has changed. It
// returns what it would compare with.
func (p *plugin) draw(fleet insight.Fleet, o statusOptions, before string) (string, error) {
	still := fleet
	still.ObservedAt = time.Time{}
	still.Components = nil // Leases are renewed all the time
	for _, c := range fleet.Components {
		c.Renewed = nil
		still.Components = append(still.Components, c)
	}
	var text strings.Builder
	writeFleet(&text, still, o)
	same := text.String() == before
	switch {
	case p.isText() && p.isTerminal():
		fmt.Fprint(p.Out, "\033[H\033[2J")
	case same:
		return before, nil
	}
	err := p.print(fleet, func(w io.Writer) {
		fmt.Fprintf(w, "%s\n", fleet.ObservedAt.UTC().Format(time.RFC3339))
		writeFleet(w, fleet, o)
	})
	return text.String(), err
}
