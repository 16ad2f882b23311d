package security

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// post sends a review of a deletion that the API server was not asked for, and returns the status code.
func post(t *testing.T, at string, pod *corev1.Pod) int {
	t.Helper()
	raw, err := json.Marshal(pod)
	require.NoError(t, err)
	review := admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1",
		Kind: "AdmissionReview"}, Request: &admissionv1.AdmissionRequest{
		UID: "forged", Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
		Resource:  metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
		Namespace: pod.Namespace, Name: pod.Name, Operation: admissionv1.Delete, OldObject: runtime.RawExtension{Raw: raw},
		UserInfo: authenticationv1.UserInfo{Username: "kubernetes-admin", Groups: []string{"system:masters"}},
	}}
	body, err := json.Marshal(review)
	require.NoError(t, err)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at, bytes.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/json")
	sender := &http.Client{Timeout: time.Minute,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // an attacker trusts everybody
	defer sender.CloseIdleConnections()
	response, err := sender.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	return response.StatusCode
}

// TestNobodyButTheAPIServerIsBelieved: every Pod of a cluster can connect to webhook-server, and its answers to
// deletions mark Pods.
func TestNobodyButTheAPIServerIsBelieved(t *testing.T) {
	w := everything(t)
	victim := w.victim(t)
	target := &w.pods(t, t, victim, "web")[0]
	target.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	mallory := w.tenant(t, w.namespace(t), "edit", "kuperator-operate")
	var configuration admissionregistrationv1.ValidatingWebhookConfiguration
	key := client.ObjectKey{Name: suite.Webhook}
	require.True(t, apierrors.IsForbidden(mallory.Get(t.Context(), key, &configuration)), "who may read it may call")
	require.NoError(t, w.admin.Get(t.Context(), key, &configuration))
	var real *url.URL
	for _, webhook := range configuration.Webhooks {
		if webhook.Name == "deletion.pods.webhook-server.kusionstack.io" {
			var err error
			real, err = url.Parse(*webhook.ClientConfig.URL)
			require.NoError(t, err)
		}
	}
	require.NotNil(t, real)
	for _, path := range []string{"/delete-pods", "/delete-pods/", "/delete-pods/guess", "/evict-pods",
		"/evict-pods/guess"} {
		require.Equal(t, http.StatusForbidden, post(t, "https://"+real.Host+path, target), path)
	}
	marked := func() bool {
		var now corev1.Pod
		require.NoError(t, w.admin.Get(t.Context(), client.ObjectKeyFromObject(target), &now))
		return now.Labels[appsv1alpha1.ToDeleteLabel] != ""
	}
	require.False(t, marked())
	w.budget(t, victim)

	t.Log("the same review is believed where the API server sends its own")
	freeze := client.RawPatch(types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"podopslifecycle.kusionstack.io/freeze":"the Pod is to stay"}}}`))
	require.NoError(t, w.admin.Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: victim}}, freeze))
	require.Equal(t, http.StatusOK, post(t, real.String(), target))
	eventually(t, func(c *assert.CollectT) {
		var now corev1.Pod
		err := w.admin.Get(t.Context(), client.ObjectKeyFromObject(target), &now)
		require.True(c, apierrors.IsNotFound(err) || err == nil && now.Labels[appsv1alpha1.ToDeleteLabel] != "", "%v", err)
	}, "the Pod is marked")
}
