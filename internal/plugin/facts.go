package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/insight"
)

// managedPods selects the Pods under the lifecycle.
const managedPods = appsv1alpha1.ControlLabel + "=" + appsv1alpha1.ControlValue

// Resources, as gaps name them.
const (
	podsResource        = "pods"
	setsResource        = "collasets.apps.kusionstack.io"
	rulesResource       = "podtransitionrules.apps.kusionstack.io"
	jobsResource        = "operationjobs.apps.kusionstack.io"
	decorationsResource = "poddecorations.apps.kusionstack.io"
	leasesResource      = "leases.coordination.k8s.io"
)

// suiteKinds is how many kinds of the suite facts reads.
const suiteKinds = 4

// maxSingleNodes is how many nodes are read one by one before all are listed.
const maxSingleNodes = 3

// facts reads what insight wants to know of one namespace, or of all (""): one list for each kind. Only Pods must be
// readable. It is an error if the suite is not installed.
func (s *session) facts(ctx context.Context, namespace string) (insight.Facts, error) {
	f, err := s.factsOf(ctx, namespace)
	if err != nil {
		return f, err
	}
	unserved := 0
	for _, g := range f.Gaps {
		if g.Why == notServed {
			unserved++
		}
	}
	if len(f.Pods) == 0 && unserved == suiteKinds {
		return f, errors.New("the API server serves none of the suite's kinds: " + notInstalled)
	}
	return f, nil
}

// factsOf is facts of a cluster of which it is not known whether it has the suite.
func (s *session) factsOf(ctx context.Context, namespace string) (insight.Facts, error) {
	f := insight.Facts{System: s.system}
	err := each(ctx, metav1.ListOptions{LabelSelector: managedPods}, s.kube.CoreV1().Pods(namespace).List,
		func(pod *corev1.Pod) { f.Pods = append(f.Pods, *pod) })
	if err != nil {
		return f, fmt.Errorf("listing Pods%s: %w", in(namespace), err)
	}
	for _, read := range []reading{s.read(setsResource, rulesResource, jobsResource, decorationsResource),
		s.readNamespaces, s.read(leasesResource), s.readNodes} {
		if err := read(ctx, namespace, &f); err != nil {
			return f, err
		}
	}
	f.Now = s.now()
	return f, nil
}

func in(namespace string) string {
	if namespace == "" {
		return " of all namespaces"
	}
	return " of namespace " + namespace
}

// tolerate turns what may not or cannot be read into a gap.
func tolerate(f *insight.Facts, err error, verb, resource, namespace, unsaid string) error {
	if err == nil {
		return nil
	}
	if g := gap(err, verb, resource, namespace, unsaid); g != nil {
		f.Gaps = append(f.Gaps, *g)
		return nil
	}
	return fmt.Errorf("reading %s%s: %w", resource, in(namespace), err)
}

// source is one kind of objects that facts have, to be listed or watched.
type source struct {
	resource, namespace string // as gaps name them
	unsaid              string // what is not said if they cannot be read
	selector            string // of labels; "" for all objects
	example             runtime.Object
	requests            *cache.ListWatch
	into                func(*insight.Facts, any)
}

// from completes a source: the client that has the objects, and where in the facts they go.
func from[T any, P interface {
	*T
	runtime.Object
}, L runtime.Object](s source, client interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}, list func(*insight.Facts) *[]T) source {
	s.example = P(new(T))
	s.requests = &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = s.selector
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = s.selector
			return client.Watch(ctx, o)
		},
	}
	s.into = func(f *insight.Facts, object any) {
		if item, ok := object.(*T); ok {
			*list(f) = append(*list(f), *item)
		}
	}
	return s
}

// sources are those of a namespace, or of all ("").
func (s *session) sources(namespace string) []source {
	core, suite := s.kube.CoreV1(), s.suite.AppsV1alpha1()
	return []source{
		from(source{resource: podsResource, namespace: namespace, selector: managedPods}, core.Pods(namespace),
			func(f *insight.Facts) *[]corev1.Pod { return &f.Pods }),
		from(source{resource: setsResource, namespace: namespace,
			unsaid: "what CollaSets want: replicas, revisions, paused, quotas"}, suite.CollaSets(namespace),
			func(f *insight.Facts) *[]appsv1alpha1.CollaSet { return &f.CollaSets }),
		from(source{resource: rulesResource, namespace: namespace,
			unsaid: "which rules hold Pods, and who holds their budgets"}, suite.PodTransitionRules(namespace),
			func(f *insight.Facts) *[]appsv1alpha1.PodTransitionRule { return &f.Rules }),
		from(source{resource: jobsResource, namespace: namespace,
			unsaid: "which OperationJobs run, and what they wait for"}, suite.OperationJobs(namespace),
			func(f *insight.Facts) *[]appsv1alpha1.OperationJob { return &f.Jobs }),
		from(source{resource: decorationsResource, namespace: namespace,
			unsaid: "what PodDecorations want of Pods"}, suite.PodDecorations(namespace),
			func(f *insight.Facts) *[]appsv1alpha1.PodDecoration { return &f.Decorations }),
		from(source{resource: leasesResource, namespace: s.system,
			unsaid: "which components of the suite run"}, s.kube.CoordinationV1().Leases(s.system),
			func(f *insight.Facts) *[]coordinationv1.Lease { return &f.Leases }),
	}
}

// reading reads a part of the facts of a namespace, or of all ("").
type reading = func(ctx context.Context, namespace string, f *insight.Facts) error

// read lists some resources. What may not or cannot be read is a gap.
func (s *session) read(resources ...string) reading {
	return func(ctx context.Context, namespace string, f *insight.Facts) error {
		for _, one := range s.sources(namespace) {
			if !slices.Contains(resources, one.resource) {
				continue
			}
			err := each(ctx, metav1.ListOptions{}, one.requests.ListWithContextFunc,
				func(o runtime.Object) { one.into(f, o) })
			f.LeasesKnown = f.LeasesKnown || one.resource == leasesResource && err == nil
			if err := tolerate(f, err, "list", one.resource, one.namespace, one.unsaid); err != nil {
				return err
			}
		}
		return nil
	}
}

// readNamespaces reads what is frozen, and where deletions are not graceful.
func (s *session) readNamespaces(ctx context.Context, namespace string, f *insight.Facts) error {
	f.Namespaces, f.NamespaceLabels = map[string]map[string]string{}, map[string]map[string]string{}
	if namespace == "" {
		err := each(ctx, metav1.ListOptions{}, s.kube.CoreV1().Namespaces().List,
			func(n *corev1.Namespace) { f.Namespaces[n.Name], f.NamespaceLabels[n.Name] = n.Annotations, n.Labels })
		return tolerate(f, err, "list", "namespaces", "", "what is frozen")
	}
	for name, unsaid := range map[string]string{namespace: "whether the namespace is frozen",
		s.system: "whether the cluster is frozen"} {
		n, err := s.kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		if name == namespace && apierrors.IsNotFound(err) {
			return noNamespace(name)
		}
		if err := tolerate(f, err, "get", "namespaces/"+name, "", unsaid); err != nil {
			return err
		}
		if err == nil {
			f.Namespaces[name], f.NamespaceLabels[name] = n.Annotations, n.Labels
		}
	}
	return nil
}

// readNodes reads the nodes that Pods point at.
func (s *session) readNodes(ctx context.Context, _ string, f *insight.Facts) error {
	const unsaid = "whether nodes are Ready"
	f.Nodes = map[string]*corev1.Node{}
	names := insight.NodesInQuestion(f.Pods)
	if len(names) > maxSingleNodes {
		err := each(ctx, metav1.ListOptions{}, s.kube.CoreV1().Nodes().List,
			func(n *corev1.Node) { f.Nodes[n.Name] = n })
		if err != nil {
			return tolerate(f, err, "list", "nodes", "", unsaid)
		}
		for _, name := range names {
			if f.Nodes[name] == nil {
				f.Nodes[name] = nil // it is known to be gone
			}
		}
		return nil
	}
	for _, name := range names {
		n, err := s.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		switch {
		case err == nil:
			f.Nodes[name] = n
		case apierrors.IsNotFound(err):
			f.Nodes[name] = nil
		default:
			return tolerate(f, err, "get", "nodes", "", unsaid)
		}
	}
	return nil
}

// podWarnings are Warnings about the Pods of a namespace, pageSize at most: they are read every few seconds while a
// workload is looked at. If there are more, a gap tells.
func (s *session) podWarnings(ctx context.Context, namespace string, f *insight.Facts) ([]corev1.Event, error) {
	about := fields.Set{"involvedObject.kind": "Pod", "type": corev1.EventTypeWarning}.AsSelector().String()
	list, err := s.kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: about, Limit: pageSize})
	if err != nil {
		return nil, tolerate(f, err, "list", "events", namespace, "warnings about its Pods")
	}
	if list.Continue != "" {
		f.Gaps = append(f.Gaps, insight.Gap{What: "events in namespace " + namespace, Unsaid: "some warnings about its Pods",
			Why: fmt.Sprintf("The namespace has more than %d, and no more are read.", pageSize)})
	}
	return list.Items, nil
}

// events are those about one object.
func (s *session) events(ctx context.Context, ref insight.Ref, f *insight.Facts) ([]corev1.Event, error) {
	var found []corev1.Event
	about := fields.Set{"involvedObject.kind": ref.Kind, "involvedObject.name": ref.Name}.AsSelector().String()
	err := each(ctx, metav1.ListOptions{FieldSelector: about}, s.kube.CoreV1().Events(ref.Namespace).List,
		func(e *corev1.Event) { found = append(found, *e) })
	return found, tolerate(f, err, "list", "events", ref.Namespace, "warnings about it")
}
