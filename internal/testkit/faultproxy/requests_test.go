package faultproxy_test

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"kusionstack.io/kuperator/internal/testkit/faultproxy"
	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
)

// world is a proxy before a real API server.
type world struct {
	t      *testing.T
	proxy  *faultproxy.Proxy
	direct kubernetes.Interface // past the proxy
	space  string
	kills  atomic.Int32
}

func newWorld(t *testing.T, cluster *localkube.Cluster) *world {
	w := &world{t: t, space: testcluster.Namespace(t, cluster, nil)}
	proxy, err := faultproxy.Start(cluster.RESTConfig(), faultproxy.Options{Kill: func() { w.kills.Add(1) }})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	w.proxy, w.direct = proxy, clientset(t, cluster.RESTConfig())
	return w
}

func clientset(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return client
}

// client is a new client through the proxy, as a new process has.
func (w *world) client() kubernetes.Interface {
	return clientset(w.t, w.config())
}

func (w *world) config() *rest.Config {
	path := filepath.Join(w.t.TempDir(), "kubeconfig")
	require.NoError(w.t, w.proxy.Kubeconfig(path))
	config, err := clientcmd.BuildConfigFromFlags("", path)
	require.NoError(w.t, err)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf,
		runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	return config
}

// create creates a ConfigMap through the proxy and says how that went. No answer within five seconds is an error too.
func (w *world) create(name string) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
	defer cancel()
	_, err := w.client().CoreV1().ConfigMaps(w.space).Create(ctx, configMap(name), metav1.CreateOptions{})
	return err
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// exists reports whether the API server has the ConfigMap.
func (w *world) exists(name string) bool {
	_, err := w.direct.CoreV1().ConfigMaps(w.space).Get(w.t.Context(), name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		require.NoError(w.t, err)
	}
	return err == nil
}

func TestFaultsOfRequests(t *testing.T) {
	cluster := testcluster.Start(t, localkube.Config{})
	for name, tc := range map[string]struct {
		fault         faultproxy.Fault
		wantError     func(error) bool // nil: none
		wantCommitted bool
		wantKilled    bool
	}{
		"nothing is done": {fault: faultproxy.Fault{Action: faultproxy.Observe}, wantCommitted: true},
		"killed before": {fault: faultproxy.Fault{Action: faultproxy.KillBefore}, wantError: isConnection,
			wantKilled: true},
		"killed after the commit": {fault: faultproxy.Fault{Action: faultproxy.KillAfterCommit}, wantError: isConnection,
			wantKilled: true, wantCommitted: true},
		"403": {fault: faultproxy.Fault{Action: faultproxy.FailBefore, Code: http.StatusForbidden},
			wantError: apierrors.IsForbidden},
		"409": {fault: faultproxy.Fault{Action: faultproxy.FailBefore, Code: http.StatusConflict},
			wantError: apierrors.IsConflict},
		"500": {fault: faultproxy.Fault{Action: faultproxy.FailBefore,
			Code: http.StatusInternalServerError}, wantError: apierrors.IsInternalError},
		"503": {fault: faultproxy.Fault{Action: faultproxy.FailBefore,
			Code: http.StatusServiceUnavailable}, wantError: apierrors.IsServiceUnavailable},
		"429, which client-go repeats": {fault: faultproxy.Fault{Action: faultproxy.FailBefore,
			Code: http.StatusTooManyRequests, Match: faultproxy.Match{Ordinal: 1}}, wantCommitted: true},
		"the reply is lost": {fault: faultproxy.Fault{Action: faultproxy.DropReply}, wantError: isConnection,
			wantCommitted: true},
		"timeout after the commit": {fault: faultproxy.Fault{Action: faultproxy.TimeoutAfterCommit},
			wantError: apierrors.IsTimeout, wantCommitted: true},
		"slow": {fault: faultproxy.Fault{Action: faultproxy.Slow, Delay: time.Second},
			wantCommitted: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, cluster)
			armed := w.proxy.Arm(tc.fault)
			err := w.create("one")
			if tc.wantError == nil {
				require.NoError(t, err)
			} else {
				require.Error(t, err)
				require.True(t, tc.wantError(err), "the error is %v", err)
			}
			w.proxy.Mend() // waits for Kill
			require.Equal(t, tc.wantCommitted, w.exists("one"))
			require.Equal(t, tc.wantKilled, w.kills.Load() == 1)
			require.Equal(t, 1, armed.Fired())

			armed.Disarm()
			require.NoError(t, w.create("two"), "after the fault")
			require.Equal(t, 1, armed.Fired())
		})
	}
	t.Run("the ordinal counts only what matches", func(t *testing.T) { matching(t, newWorld(t, cluster)) })
	t.Run("preconditions are recorded", func(t *testing.T) { preconditions(t, newWorld(t, cluster)) })
	t.Run("a client that was cut off writes nothing more", func(t *testing.T) { cutOff(t, newWorld(t, cluster)) })
}

func isConnection(err error) bool {
	return apierrors.ReasonForError(err) == metav1.StatusReasonUnknown
}

func matching(t *testing.T, w *world) {
	armed := w.proxy.Arm(faultproxy.Fault{
		Match:  faultproxy.Match{Verb: "create", Resource: "configmaps", Name: "a-*", Ordinal: 2},
		Action: faultproxy.FailBefore, Code: http.StatusConflict,
	})
	for i, step := range []struct {
		name     string
		wantFail bool
	}{{"b-1", false}, {"a-1", false}, {"b-2", false}, {"a-2", true}, {"a-3", false}} {
		require.Equal(t, step.wantFail, apierrors.IsConflict(w.create(step.name)), "step %d", i)
	}
	require.Equal(t, 1, armed.Fired())
	require.Equal(t, 3, armed.Matched())

	w.proxy.Mark()
	var called []string
	w.proxy.Arm(faultproxy.Fault{Match: faultproxy.Match{Key: "create configmaps"},
		Call: func(write faultproxy.Write) { called = append(called, write.Name) }})
	require.NoError(t, w.create("c"))
	require.Equal(t, []string{"c"}, called)
	require.Len(t, w.proxy.Writes(), 1)
}

func preconditions(t *testing.T, w *world) {
	ctx, client := t.Context(), w.client()
	maps := client.CoreV1().ConfigMaps(w.space)
	made, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "made-"}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	made.Data = map[string]string{"a": "b"}
	updated, err := maps.Update(ctx, made, metav1.UpdateOptions{})
	require.NoError(t, err)
	merge := fmt.Appendf(nil, `{"metadata":{"uid":%q,"resourceVersion":%q,"labels":{"a":"b"}}}`, made.UID,
		updated.ResourceVersion)
	merged, err := maps.Patch(ctx, made.Name, types.MergePatchType, merge, metav1.PatchOptions{})
	require.NoError(t, err)
	patch := fmt.Appendf(nil,
		`[{"op":"test","path":"/metadata/resourceVersion","value":%q},{"op":"add","path":"/data/c","value":"d"}]`,
		merged.ResourceVersion)
	patched, err := maps.Patch(ctx, made.Name, types.JSONPatchType, patch, metav1.PatchOptions{})
	require.NoError(t, err)
	require.NoError(t, maps.Delete(ctx, made.Name, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}),
		"a dry run is no write")
	wrong := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &made.UID,
		ResourceVersion: &made.ResourceVersion}}
	require.Error(t, maps.Delete(ctx, made.Name, wrong))
	require.NoError(t, maps.Delete(ctx, made.Name, metav1.DeleteOptions{}))
	eviction := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Name: "none", Namespace: w.space},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(types.UID("u"))}},
	}
	require.Error(t, client.CoreV1().Pods(w.space).EvictV1(ctx, eviction))

	uid := string(made.UID)
	type row struct {
		key, name, uid, version, result string
		code                            int
	}
	var got []row
	for _, write := range w.proxy.Writes() {
		got = append(got, row{write.Key(), write.Name, write.UID, write.ResourceVersion, write.Result, write.Code})
	}
	last := got[5].result // a deletion's answer is a Status or the object
	require.Equal(t, []row{
		{"create configmaps", made.Name, "", "", made.ResourceVersion, 201},
		{"update configmaps", made.Name, uid, made.ResourceVersion, updated.ResourceVersion, 200},
		{"patch configmaps", made.Name, uid, updated.ResourceVersion, merged.ResourceVersion, 200},
		{"patch configmaps", made.Name, "", merged.ResourceVersion, patched.ResourceVersion, 200},
		{"delete configmaps", made.Name, uid, made.ResourceVersion, "", 409},
		{"delete configmaps", made.Name, "", "", last, 200},
		{"create pods/eviction", "none", "u", "", "", 404},
	}, got)
}

// cutOff: what is on its way when the client is cut off stays there, whatever the client still sends over the
// connections that it has.
func cutOff(t *testing.T, w *world) {
	old := w.client()
	_, err := old.CoreV1().ConfigMaps(w.space).List(t.Context(), metav1.ListOptions{}) // so that it has a connection
	require.NoError(t, err)
	held := make(chan struct{})
	slow := w.proxy.Arm(faultproxy.Fault{Action: faultproxy.Observe, Call: func(faultproxy.Write) { <-held }})
	failed := make(chan error, 1)
	go func() {
		_, err := old.CoreV1().ConfigMaps(w.space).Create(t.Context(), configMap("late"), metav1.CreateOptions{})
		failed <- err
	}()
	require.Eventually(t, func() bool { return slow.Fired() == 1 }, time.Minute, time.Millisecond)
	w.proxy.Cut()
	require.True(t, w.proxy.IsCut())
	require.Error(t, <-failed)
	require.Error(t, w.create("refused"))
	w.proxy.Mend()
	close(held)
	slow.Disarm()
	require.NoError(t, w.create("later"))
	require.False(t, w.exists("late"))
	require.False(t, w.exists("refused"))
}
