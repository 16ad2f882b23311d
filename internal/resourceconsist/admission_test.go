package resourceconsist

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"kusionstack.io/kuperator/api/podops"
	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/internal/resourceconsist/backend"
)

func announcerOf(t *testing.T, listErr error, adapters []backend.Backend, services ...client.Object) *announcer {
	t.Helper()
	reader := fake.NewClientBuilder().WithObjects(services...).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if listErr != nil {
				return listErr
			}
			return c.List(ctx, list, opts...)
		},
	}).Build()
	return &announcer{
		kind: "Service", adapters: adapters, employers: reader,
		list: func() (client.ObjectList, error) { return &corev1.ServiceList{}, nil },
	}
}

func creation(t *testing.T, pod *corev1.Pod) admission.Request {
	t.Helper()
	raw, err := json.Marshal(pod)
	require.NoError(t, err)
	return admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Operation: admissionv1.Create, Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
		Namespace: "shop", Object: runtime.RawExtension{Raw: raw},
	}}
}

func TestAdmissionAnnouncesTheEmployersOfANewPod(t *testing.T) {
	service := func(name string, change func(*corev1.Service)) *corev1.Service {
		s := webService()
		s.Name = name
		if change != nil {
			change(s)
		}
		return s
	}
	now := metav1.Now()
	services := []client.Object{
		service("web", nil),
		service("other", func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "other"} }),
		service("empty", func(s *corev1.Service) { s.Spec.Selector = nil }),
		service("free", func(s *corev1.Service) { s.Labels = nil }),
		service("elsewhere", func(s *corev1.Service) { s.Namespace = "market" }),
		service("leaving", func(s *corev1.Service) {
			s.DeletionTimestamp, s.Finalizers = &now, []string{"example.org/other"}
		}),
	}
	web := "Service/shop/web"
	for name, tc := range map[string]struct {
		change  func(*corev1.Pod)
		request func(*admission.Request)
		listErr error

		want     map[string]string
		wantCode int32
	}{
		"a Pod without annotations": {want: map[string]string{web: api.Finalizer("web")}},
		"what others announced stays": {
			change: func(p *corev1.Pod) {
				p.Annotations = map[string]string{"a": "b",
					podops.AvailableConditionsAnnotation: `{"expectedFinalizers":{"Gateway/shop/edge":"x/y"}}`}
			},
			want: map[string]string{web: api.Finalizer("web"), "Gateway/shop/edge": "x/y"},
		},
		"a null in the annotation": {
			change: func(p *corev1.Pod) {
				p.Annotations = map[string]string{podops.AvailableConditionsAnnotation: `{"expectedFinalizers":null}`}
			},
			want: map[string]string{web: api.Finalizer("web")},
		},
		"a dry run has the same answer": {
			request: func(r *admission.Request) { yes := true; r.DryRun = &yes },
			want:    map[string]string{web: api.Finalizer("web")},
		},
		"a Pod with a generated name": {
			change: func(p *corev1.Pod) { p.Name, p.Namespace, p.GenerateName = "", "", "web-" },
			want:   map[string]string{web: api.Finalizer("web")},
		},
		"a mover needs no gate": {
			change: func(p *corev1.Pod) { p.Spec.ReadinessGates = nil }, want: map[string]string{web: api.Finalizer("web")},
		},
		"a Pod that is not managed": {change: func(p *corev1.Pod) { delete(p.Labels, "kusionstack.io/control") }},
		"an update":                 {request: func(r *admission.Request) { r.Operation = admissionv1.Update }},
		"a subresource":             {request: func(r *admission.Request) { r.SubResource = "binding" }},
		"a broken annotation": {change: func(
			p *corev1.Pod) {
			p.Annotations = map[string]string{podops.AvailableConditionsAnnotation: "{"}
		}, wantCode: http.StatusUnprocessableEntity},
		"no Pod": {request: func(r *admission.Request) { r.Object.Raw = []byte("[]") },
			wantCode: http.StatusBadRequest},
		"a cache that does not answer": {listErr: errors.New("stopped"), wantCode: http.StatusInternalServerError},
	} {
		t.Run(name, func(t *testing.T) {
			pod := webPod()
			if tc.change != nil {
				tc.change(pod)
			}
			request := creation(t, pod)
			if tc.request != nil {
				tc.request(&request)
			}
			response := announcerOf(t, tc.listErr, []backend.Backend{&proxy{}}, services...).handle(t.Context(), request)
			if tc.wantCode != 0 {
				require.False(t, response.Allowed)
				require.Equal(t, tc.wantCode, response.Result.Code)
				return
			}
			require.True(t, response.Allowed)
			require.LessOrEqual(t, len(response.Patches), 1)
			if tc.want == nil {
				require.Empty(t, response.Patches)
				return
			}
			got := ""
			switch p := response.Patches[0]; p.Path {
			case "/metadata/annotations":
				require.Empty(t, pod.Annotations, "the patch would drop annotations")
				got = p.Value.(map[string]string)[podops.AvailableConditionsAnnotation]
			default:
				require.Equal(t, "/metadata/annotations/pod.kusionstack.io~1available-conditions", p.Path)
				got = p.Value.(string)
			}
			expected, err := podops.ExpectedFinalizers(map[string]string{podops.AvailableConditionsAnnotation: got})
			require.NoError(t, err)
			require.Equal(t, tc.want, expected)
		})
	}
}

// gateless is a Backend that only observes.
type gateless struct{ backend.Backend }

func TestAdmissionDoesNotAnnounceWhatAPodWithoutGateCouldNotWaitFor(t *testing.T) {
	adapters := []backend.Backend{gateless{&proxy{}}}
	pod := webPod()
	require.Len(t, announcerOf(t, nil, adapters, webService()).handle(t.Context(), creation(t, pod)).Patches, 1)
	pod.Spec.ReadinessGates = nil
	require.Empty(t, announcerOf(t, nil, adapters, webService()).handle(t.Context(), creation(t, pod)).Patches)
}

func TestAPathIsTakenOnce(t *testing.T) {
	server := webhook.NewServer(webhook.Options{})
	require.NoError(t, register(server, "/proxy", http.NotFoundHandler()))
	require.ErrorContains(t, register(server, "/proxy", http.NotFoundHandler()), "/proxy")
}
