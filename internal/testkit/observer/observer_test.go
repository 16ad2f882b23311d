package observer

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

// kind is one kind of an API server whose watch tells things when the test lets it.
type kind struct {
	mu    sync.Mutex
	watch *watch.FakeWatcher
	list  runtime.Object
	// down is true if the server does not answer.
	down bool
}

// breaks ends the watch. The next one and what is listed from now on are new.
func (k *kind) breaks(end func(*watch.FakeWatcher), list runtime.Object, down bool) {
	k.mu.Lock()
	before := k.watch
	k.watch, k.list, k.down = watch.NewFake(), list, down
	k.mu.Unlock()
	end(before)
}

func newKind(list runtime.Object) *kind { return &kind{watch: watch.NewFake(), list: list} }

func (k *kind) source(name string) source {
	return source{
		kind: name,
		list: func(context.Context, string, metav1.ListOptions) (runtime.Object, error) {
			k.mu.Lock()
			defer k.mu.Unlock()
			if k.down {
				return nil, errors.New("nobody answers")
			}
			return k.list, nil
		},
		watch: func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
			k.mu.Lock()
			defer k.mu.Unlock()
			context.AfterFunc(ctx, k.watch.Stop) // as a client's watch ends
			return k.watch, nil
		},
	}
}

func versioned[O metav1.Object](version string, o O) O {
	o.SetResourceVersion(version)
	return o
}

func podsAt(version string, pods ...*corev1.Pod) *corev1.PodList {
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: version}}
	for _, p := range pods {
		list.Items = append(list.Items, *p)
	}
	return list
}

func slicesAt(version string, slices ...*discoveryv1.EndpointSlice) *discoveryv1.EndpointSliceList {
	list := &discoveryv1.EndpointSliceList{ListMeta: metav1.ListMeta{ResourceVersion: version}}
	for _, s := range slices {
		s.UID = "slice"
		list.Items = append(list.Items, *s)
	}
	return list
}

// TestSettledWaitsForTheSlowestWatch has the watch of EndpointSlices hours behind that of Pods: what is judged is what
// happened, in the order in which it happened.
func TestSettledWaitsForTheSlowestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "service",
			Labels: map[string]string{controlLabel: "true"}}}
		servicesAt := func(version string) *corev1.ServiceList {
			return &corev1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: version},
				Items: []corev1.Service{*versioned("1", service)}}
		}
		services := newKind(servicesAt("3"))
		listed, unlisted := versioned("3", endpointSlice("uid-0")), versioned("5", endpointSlice())
		pods, slices := newKind(podsAt("3", versioned("2", aPod(0)))), newKind(slicesAt("3", listed))
		o, err := start(t.Context(), []source{pods.source("pods"), slices.source("endpointslices"),
			services.source("services")}, Options{Hold: 24 * time.Hour})
		require.NoError(t, err)

		pods.list, slices.list, services.list = podsAt("6", versioned("6", aPod(0, offline, newImage))),
			slicesAt("6", unlisted), servicesAt("6")
		pods.watch.Modify(versioned("4", aPod(0, offline)))
		pods.watch.Modify(versioned("6", aPod(0, offline, newImage)))
		var report *Report
		go func() {
			r := o.Settled(t.Context())
			report = &r
		}()
		time.Sleep(time.Hour) // virtual
		synctest.Wait()
		require.Nil(t, report, "the EndpointSlice is still to come")

		slices.watch.Modify(unlisted)
		time.Sleep(time.Second)
		synctest.Wait()
		require.NotNil(t, report)
		require.NoError(t, report.Err(), "the Pod was off the EndpointSlice when it changed")
		require.Equal(t, 3, report.PodVersions[types.UID("uid-0")])
		require.Zero(t, report.Late)

		pods.list, slices.list, services.list = podsAt("7"), slicesAt("7", unlisted), servicesAt("7")
		last, stopped := Report{}, false
		go func() {
			last, err = o.Stop()
			stopped = true
		}()
		time.Sleep(time.Second)
		synctest.Wait()
		require.False(t, stopped, "the deletion is still to come")
		pods.watch.Delete(versioned("7", aPod(0, offline, newImage)))
		time.Sleep(time.Second)
		synctest.Wait()
		require.True(t, stopped)
		require.NoError(t, err)
		require.Equal(t, 4, last.PodVersions[types.UID("uid-0")])
	})
}

func TestStopGivesUpOnAWatchThatTellsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := newKind(podsAt("3", versioned("2", aPod(0))))
		o, err := start(t.Context(), []source{pods.source("pods")}, Options{})
		require.NoError(t, err)
		pods.list = podsAt("4", versioned("4", aPod(0, offline)))
		done := make(chan error, 1)
		go func() {
			_, err := o.Stop()
			done <- err
		}()
		require.ErrorContains(t, <-done, "waiting for the watch of pods to come to resourceVersion 4")
	})
}

// TestWhatHappenedWhileAWatchWasBrokenIsNotJudged has the watch of rules broken while a grant comes and goes, and
// that of Pods whole. What comes after the list is judged as ever.
func TestWhatHappenedWhileAWatchWasBrokenIsNotJudged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rulesAt := func(version, object string, r *appsv1alpha1.PodTransitionRule) *appsv1alpha1.PodTransitionRuleList {
			return &appsv1alpha1.PodTransitionRuleList{ListMeta: metav1.ListMeta{ResourceVersion: version},
				Items: []appsv1alpha1.PodTransitionRule{*versioned(object, r.DeepCopy())}}
		}
		without := maxUnavailable("4")
		without.Status.Grants = nil
		preparing := func(p *corev1.Pod) {
			asking(p)
			labelled(preCheckedPrefix+operatorID, "1", permissionPrefix+updateType, "1", preparingPrefix+operatorID, "1")(p)
			gateClosed(p)
		}
		rules := newKind(rulesAt("9", "1", without))
		pods := newKind(podsAt("9", versioned("2", aPod(0, asking)), versioned("3", aPod(1, asking)),
			versioned("4", aPod(2, asking))))
		o, err := start(t.Context(), []source{pods.source("pods"), rules.source("podtransitionrules")},
			Options{StuckAfter: -1})
		require.NoError(t, err)
		time.Sleep(time.Minute) // the rule is known to every component
		synctest.Wait()

		expires := func(w *watch.FakeWatcher) { w.Error(&metav1.Status{Reason: metav1.StatusReasonExpired}) }
		rules.breaks(expires, rulesAt("13", "12", without), false)
		pods.watch.Modify(versioned("11", aPod(0, preparing))) // granted at 10, which was taken back at 12
		time.Sleep(time.Minute)
		synctest.Wait()
		report := o.Report()
		require.NoError(t, report.Err())
		require.Equal(t, 2, report.PodVersions["uid-0"], "it was taken up")
		require.Equal(t, 1, report.Gaps)

		pods.watch.Modify(versioned("14", aPod(1, preparing)))
		time.Sleep(time.Minute)
		synctest.Wait()
		report = o.Report()
		require.Len(t, report.Violations, 1)
		require.Contains(t, report.Violations[0].Message, "without a grant")

		// a watch that breaks off and continues where it was has missed nothing
		rules.breaks((*watch.FakeWatcher).Stop, rulesAt("13", "12", without), false)
		pods.watch.Modify(versioned("15", aPod(2, preparing)))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, o.Report().Violations, 2)
		require.Equal(t, 1, o.Report().Gaps)

		// while the API server is away nothing is judged
		rules.breaks(expires, nil, true)
		pods.watch.Modify(versioned("16", aPod(0, asking)))
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, 2, o.Report().PodVersions["uid-0"])
		rules.breaks((*watch.FakeWatcher).Stop, rulesAt("17", "12", without), false)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 3, o.Report().PodVersions["uid-0"])
		require.Equal(t, 2, o.Report().Gaps)
	})
}

// TestOneNamespace asks for what is in the namespace of the options, also where all is wanted, and for its Namespace
// alone.
func TestOneNamespace(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, appsv1alpha1.AddToScheme(scheme))
	clients, custom := fake.NewClientset(), dynamicfake.NewSimpleDynamicClient(scheme)
	all := sources(clients, custom, "ours")
	for _, s := range all {
		_, err := s.list(t.Context(), metav1.NamespaceAll, metav1.ListOptions{})
		require.NoError(t, err)
		_, err = s.watch(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
	}
	actions := append(clients.Actions(), custom.Actions()...)
	require.Len(t, actions, 2*len(all))
	for _, action := range actions {
		var of string
		switch a := action.(type) {
		case clienttesting.ListAction:
			of = a.GetListRestrictions().Fields.String()
		case clienttesting.WatchAction:
			of = a.GetWatchRestrictions().Fields.String()
		}
		wantNamespace, wantFields := "ours", ""
		switch action.GetResource().Resource {
		case "nodes":
			wantNamespace = ""
		case "namespaces":
			wantNamespace, wantFields = "", "metadata.name=ours"
		}
		require.Equal(t, wantNamespace, action.GetNamespace(), "%s %s", action.GetVerb(), action.GetResource().Resource)
		require.Equal(t, wantFields, of, "%s %s", action.GetVerb(), action.GetResource().Resource)
	}
}
