package resourceconsist

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
)

// announcer announces the employers of one kind on new Pods.
type announcer struct {
	kind     string
	adapters []backend.Backend
	// employers reads the employers from a cache, into a list of their kind.
	employers client.Reader
	list      func() (client.ObjectList, error)
}

// AddAdmissionToManager adds the webhook for employers of the example's kind; see api/resourceconsist/setup.
func AddAdmissionToManager(mgr manager.Manager, example client.Object, adapters ...backend.Backend) error {
	gvk, err := kindOf(mgr, example, adapters)
	if err != nil {
		return err
	}
	listKind := gvk.GroupVersion().WithKind(gvk.Kind + "List")
	list := func() (client.ObjectList, error) {
		object, err := mgr.GetScheme().New(listKind)
		if err != nil {
			return nil, err
		}
		list, ok := object.(client.ObjectList)
		if !ok {
			return nil, fmt.Errorf("%T is no list", object)
		}
		return list, nil
	}
	a := &announcer{kind: gvk.Kind, adapters: adapters, employers: mgr.GetCache(), list: list}
	if _, err := a.list(); err != nil {
		return fmt.Errorf("adding the admission webhook for %s: its list: %w", gvk.Kind, err)
	}
	paths := []string{"/mutate-pods-" + strings.ToLower(gvk.Kind)}
	for _, adapter := range adapters {
		paths = append(paths, "/"+adapter.Name())
	}
	for _, path := range paths {
		if err := register(mgr.GetWebhookServer(), path,
			&webhook.Admission{Handler: admission.HandlerFunc(a.handle)}); err != nil {
			return fmt.Errorf("adding the admission webhook for %s: %w", gvk.Kind, err)
		}
	}
	ctx := context.Background() //nolint:forbidigo // nothing is read or awaited here
	// otherwise the first Pod would wait until the cache is filled
	if _, err := mgr.GetCache().GetInformer(ctx, backend.New(example), cache.BlockUntilSynced(false)); err != nil {
		return fmt.Errorf("adding the admission webhook for %s: watching them: %w", gvk.Kind, err)
	}
	return nil
}

// register registers a handler. The server takes a path only once, and panics otherwise.
func register(server webhook.Server, path string, handler http.Handler) (err error) {
	defer func() {
		if problem := recover(); problem != nil {
			err = fmt.Errorf("path %s: %v: add each employer kind once, and give adapters of different kinds different names",
				path, problem)
		}
	}()
	server.Register(path, handler)
	return nil
}

// handle announces, on a managed Pod that is being created, the employers that select it. It reads a cache and changes
// nothing else, so a dry run is like any other.
func (a *announcer) handle(ctx context.Context, request admission.Request) admission.Response {
	if request.Resource.Resource != "pods" || request.SubResource != "" || request.Operation != admissionv1.Create {
		return admission.Allowed("")
	}
	var pod corev1.Pod
	if err := json.Unmarshal(request.Object.Raw, &pod); err != nil {
		return admission.Errored(http.StatusBadRequest,
			fmt.Errorf("this is no Pod: %w: compare it with kubectl explain", err))
	}
	if pod.Labels[appsv1alpha1.ControlLabel] != appsv1alpha1.ControlValue {
		return admission.Allowed("")
	}
	employers, err := a.of(ctx, request.Namespace, &pod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	patches, err := api.Announce(pod.Annotations, a.kind, employers...)
	if err != nil {
		return admission.Errored(http.StatusUnprocessableEntity,
			fmt.Errorf("annotation %s of the Pod cannot be read: %w: remove it, or correct it to {\"expectedFinalizers\":{}}",
				podops.AvailableConditionsAnnotation, err))
	}
	return admission.Patched("", patches...)
}

// of lists the employers of the namespace that employ the Pod.
func (a *announcer) of(ctx context.Context, namespace string, pod *corev1.Pod) ([]client.ObjectKey, error) {
	list, err := a.list()
	if err != nil {
		return nil, err
	}
	if err := a.employers.List(ctx, list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing the %s objects of namespace %s from the cache: %w", a.kind, namespace, err)
	}
	gated := podops.Read(pod).Gate
	var found []client.ObjectKey
	err = meta.EachListItem(list, func(o runtime.Object) error {
		employer, ok := o.(client.Object)
		if !ok {
			return fmt.Errorf("the cache holds a %T", o)
		}
		if a.employs(employer, pod.Labels, gated) {
			found = append(found, client.ObjectKeyFromObject(employer))
		}
		return nil
	})
	return found, err
}

// employs reports whether the employer takes part in the Pod's life, as traffic.Decide will see it.
func (a *announcer) employs(employer client.Object, podLabels labels.Set, gated bool) bool {
	if employer.GetDeletionTimestamp() != nil {
		return false
	}
	return slices.ContainsFunc(a.adapters, func(adapter backend.Backend) bool {
		_, moves := adapter.(backend.Mover)
		selector := selectorOf(adapter, employer)
		return (moves || gated) && selector != nil && selector.Matches(podLabels)
	})
}
