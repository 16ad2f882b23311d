package collaset

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/revision"
)

// configurationName is the name of the controller of status.configuration.
const configurationName = Name + "-configuration"

// followIndex is the cache index of CollaSets by followedBy.
const followIndex = "collaset.follows"

// settleTime is how long a change waits for others, so that Pods restart once for a release of several objects, and
// kubelets have seen the new content by then.
const settleTime = 3 * time.Second

// permissionInterval is how often is looked whether objects can be watched that could not be.
const permissionInterval = 30 * time.Second

// followedBy is an index function: the objects that a CollaSet follows, and their kinds.
func followedBy(object client.Object) []string {
	set, ok := object.(*appsv1alpha1.CollaSet)
	if !ok {
		return nil
	}
	var keys []string
	for _, c := range revision.Followed(set) {
		if kind := string(c.Kind); !slices.Contains(keys, kind) {
			keys = append(keys, kind)
		}
		keys = append(keys, c.String())
	}
	return keys
}

// configurationChanged lets updates of CollaSets pass in which status.configuration differs.
func configurationChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, wasSet := e.ObjectOld.(*appsv1alpha1.CollaSet)
		after, isSet := e.ObjectNew.(*appsv1alpha1.CollaSet)
		return wasSet && isSet && !slices.Equal(before.Status.Configuration, after.Status.Configuration)
	}}
}

// configurationReconciler keeps status.configuration of CollaSets: what they follow, as it was last read. The updated
// revision is made from that, in another reconcile, and never from what was read alone: so a change is stored before
// any Pod is touched for it, and a controller that starts again finds out that there is nothing new.
// docs/design/0039-followed-configuration.md
type configurationReconciler struct {
	*server
	watches *configurationWatches
}

// addConfigurationController adds the controller. It looks at each CollaSet at the start, and watches nothing until one
// follows something.
func addConfigurationController(mgr ctrl.Manager, s *server) error {
	c, err := metadata.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return err
	}
	watches := &configurationWatches{sets: mgr.GetClient(), client: c}
	return builder.ControllerManagedBy(mgr).
		Named(configurationName).
		For(&appsv1alpha1.CollaSet{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(source.Func(watches.start)).
		WithOptions(bootstrap.ControllerOptions(0)).
		Complete(&configurationReconciler{s, watches})
}

// Reconcile implements reconcile.Reconciler.
func (r *configurationReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if err := r.watches.adjust(ctx, req.Namespace); err != nil {
		return ctrl.Result{}, err
	}
	set := &appsv1alpha1.CollaSet{}
	if err := r.client.Get(ctx, req.NamespacedName, set); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if set.DeletionTimestamp != nil {
		return ctrl.Result{}, nil
	}
	readings, result := map[revision.Configuration]revision.ConfigurationReading{}, ctrl.Result{}
	for _, c := range revision.Followed(set) {
		reading, err := r.read(ctx, set.Namespace, c)
		if err != nil {
			return ctrl.Result{}, err
		}
		if r.watches.forbidden(set.Namespace, c.Kind) {
			reading.Problem, result.RequeueAfter = forbiddenToRead(set.Namespace, c.Kind), permissionInterval
		}
		readings[c] = reading
	}
	changed := set.DeepCopy()
	changed.Status.Configuration = revision.FollowConfiguration(set, readings)
	if slices.Equal(set.Status.Configuration, changed.Status.Configuration) {
		return result, nil
	}
	if err := r.client.Status().Patch(ctx, changed, optimisticPatch(set)); err != nil {
		if apierrors.IsConflict(err) {
			return ctrl.Result{RequeueAfter: r.writes.Conflicts.Met(req.NamespacedName)}, nil
		}
		return ctrl.Result{}, client.IgnoreNotFound(fmt.Errorf("writing status.configuration: %w", err))
	}
	r.writes.Wrote(req.NamespacedName, changed)
	r.record(set, changed.Status.Configuration)
	return result, nil
}

// read reads the content of an object past the cache, and keeps its hash only.
func (r *configurationReconciler) read(
	ctx context.Context, namespace string, c revision.Configuration,
) (revision.ConfigurationReading, error) {
	key, reading := client.ObjectKey{Namespace: namespace, Name: c.Name}, revision.ConfigurationReading{}
	var err error
	if c.Kind == appsv1alpha1.ConfigurationSecret {
		secret := &corev1.Secret{}
		if err = r.live.Get(ctx, key, secret); err == nil {
			reading.Hash = revision.HashOfSecret(secret)
		}
	} else {
		configMap := &corev1.ConfigMap{}
		if err = r.live.Get(ctx, key, configMap); err == nil {
			reading.Hash = revision.HashOfConfigMap(configMap)
		}
	}
	switch {
	case apierrors.IsNotFound(err):
		reading.Problem = "it does not exist"
	case apierrors.IsForbidden(err):
		reading.Problem = forbiddenToRead(namespace, c.Kind)
	case err != nil:
		return reading, fmt.Errorf("reading %s %s: %w", c.Kind, c.Name, err)
	}
	return reading, nil
}

func forbiddenToRead(namespace string, kind appsv1alpha1.ConfigurationKind) string {
	return fmt.Sprintf("collaset-controller may not read %ss in namespace %s: give its service account get, list and "+
		"watch of them there, see docs/collaset.md#followed-configuration", kind, namespace)
}

// record tells what has changed, and what cannot be read any more.
func (r *configurationReconciler) record(set *appsv1alpha1.CollaSet, now []appsv1alpha1.ConfigurationStatus) {
	before := map[revision.Configuration]appsv1alpha1.ConfigurationStatus{}
	for _, entry := range set.Status.Configuration {
		before[revision.Configuration{Kind: entry.Kind, Name: entry.Name}] = entry
	}
	for _, entry := range now {
		was := before[revision.Configuration{Kind: entry.Kind, Name: entry.Name}]
		if was.Hash != "" && was.Hash != entry.Hash {
			r.events.Eventf(set, nil, corev1.EventTypeNormal, "ConfigurationChanged", "Update",
				"%s %s has changed, so the updated revision has", entry.Kind, entry.Name)
		}
		if entry.Message != "" && entry.Message != was.Message {
			r.events.Eventf(set, nil, corev1.EventTypeWarning, "ConfigurationUnreadable", "Update",
				"%s %s cannot be followed: %s", entry.Kind, entry.Name, entry.Message)
		}
	}
}

// configurationWatches watches the metadata of ConfigMaps and Secrets in namespaces in which CollaSets follow some.
// Each namespace has a watch of its own for each kind, because permissions to read Secrets are given by namespace.
type configurationWatches struct {
	sets   client.Reader
	client metadata.Interface

	mutex sync.Mutex
	ctx   context.Context //nolint:containedctx // of the controller, for watches that start later
	queue workqueue.TypedRateLimitingInterface[ctrl.Request]
	open  map[watchKey]*configurationWatch
}

// watchKey is a namespace and a kind.
type watchKey struct {
	namespace string
	kind      appsv1alpha1.ConfigurationKind
}

type configurationWatch struct {
	informer toolscache.SharedIndexInformer
	stop     context.CancelFunc
	// forbidden is true if the last attempt to list or watch was refused, and version what had been listed by then.
	forbidden bool
	version   string
}

// start is a source of the controller.
func (w *configurationWatches) start(
	ctx context.Context, queue workqueue.TypedRateLimitingInterface[ctrl.Request],
) error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.ctx, w.queue, w.open = ctx, queue, map[watchKey]*configurationWatch{}
	return nil
}

// adjust starts the watches that CollaSets of a namespace need, and ends those that none needs.
func (w *configurationWatches) adjust(ctx context.Context, namespace string) error {
	for _, kind := range []appsv1alpha1.ConfigurationKind{appsv1alpha1.ConfigurationConfigMap,
		appsv1alpha1.ConfigurationSecret} {
		followers := &appsv1alpha1.CollaSetList{}
		err := w.sets.List(ctx, followers, client.InNamespace(namespace), client.MatchingFields{followIndex: string(kind)},
			client.Limit(1), client.UnsafeDisableDeepCopy)
		if err != nil {
			return fmt.Errorf("listing CollaSets that follow %ss: %w", kind, err)
		}
		w.set(watchKey{namespace, kind}, len(followers.Items) > 0) //nolint:contextcheck // a watch outlives this reconcile
	}
	return nil
}

func (w *configurationWatches) set(key watchKey, needed bool) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	switch watch := w.open[key]; {
	case needed && watch == nil:
		w.open[key] = w.begin(key)
	case !needed && watch != nil:
		watch.stop()
		delete(w.open, key)
	}
}

func (w *configurationWatches) begin(key watchKey) *configurationWatch {
	resource := corev1.SchemeGroupVersion.WithResource(strings.ToLower(string(key.kind)) + "s")
	watch := &configurationWatch{informer: metadatainformer.NewFilteredMetadataInformer(w.client, resource, key.namespace,
		0, toolscache.Indexers{}, nil).Informer()}
	ctx, stop := context.WithCancel(w.ctx)
	watch.stop = stop
	logger := log.FromContext(w.ctx).WithValues("namespace", key.namespace, "kind", key.kind)
	// The informer has not started, so none of these fails.
	_ = watch.informer.SetTransform(onlyVersion)
	_ = watch.informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *toolscache.Reflector, err error) {
		if !apierrors.IsForbidden(err) {
			toolscache.DefaultWatchErrorHandler(ctx, r, err)
			return
		}
		logger.V(1).Info("watching is forbidden", "reason", err.Error())
		w.mutex.Lock()
		told := watch.forbidden
		watch.forbidden, watch.version = true, watch.informer.LastSyncResourceVersion()
		w.mutex.Unlock()
		if !told {
			w.enqueue(ctx, key.namespace, string(key.kind))
		}
	})
	changed := func(object any) {
		if gone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
			object = gone.Obj
		}
		if o, ok := object.(metav1.Object); ok {
			w.enqueue(ctx, key.namespace, revision.Configuration{Kind: key.kind, Name: o.GetName()}.String())
		}
	}
	_, _ = watch.informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: changed, UpdateFunc: func(_, object any) { changed(object) }, DeleteFunc: changed,
	})
	go watch.informer.RunWithContext(ctx)
	return watch
}

// onlyVersion keeps of an object what tells its versions apart.
func onlyVersion(object any) (any, error) {
	o, ok := object.(metav1.Object)
	if !ok {
		return object, nil
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName(),
		UID: o.GetUID(), ResourceVersion: o.GetResourceVersion()}}, nil
}

// forbidden reports whether objects of a kind cannot be watched in a namespace for lack of permission.
func (w *configurationWatches) forbidden(namespace string, kind appsv1alpha1.ConfigurationKind) bool {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	watch := w.open[watchKey{namespace, kind}]
	if watch == nil {
		return false
	}
	if watch.forbidden && watch.informer.LastSyncResourceVersion() != watch.version {
		watch.forbidden = false // it was listed since
	}
	return watch.forbidden
}

// enqueue has the CollaSets looked at that follow an object, or a kind.
func (w *configurationWatches) enqueue(ctx context.Context, namespace, followed string) {
	followers := &appsv1alpha1.CollaSetList{}
	err := w.sets.List(ctx, followers, client.InNamespace(namespace), client.MatchingFields{followIndex: followed},
		client.UnsafeDisableDeepCopy)
	if err != nil {
		if ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "listing CollaSets that follow an object", "namespace", namespace, "object",
				followed)
		}
		return
	}
	for i := range followers.Items {
		w.queue.AddAfter(ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&followers.Items[i])}, settleTime)
	}
}
