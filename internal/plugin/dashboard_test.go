package plugin

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/dashboard"
	"kusionstack.io/kuperator/internal/insight"
	"kusionstack.io/kuperator/internal/revision"
)

func TestDashboardIsForThisMachine(t *testing.T) {
	for address, wrong := range map[string]string{
		"127.0.0.1:0": "", "localhost:8686": "", "[::1]:1": "",
		"0.0.0.0:80": "loopback", ":80": "loopback", "10.1.2.3:80": "loopback", "example.com:80": "loopback",
		"127.0.0.1": "host:port", "": "host:port",
	} {
		if err := loopback(address); wrong == "" {
			assert.NoError(t, err, address)
		} else {
			assert.ErrorContains(t, err, wrong, address)
		}
	}
}

// TestCopiedCommandsReachTheSameCluster: they have the flags by which this command chose it.
func TestCopiedCommandsReachTheSameCluster(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(file, []byte(`{apiVersion: v1, kind: Config, current-context: dev,
		contexts: [{name: dev, context: {cluster: a}}, {name: it's prod, context: {cluster: a}}],
		clusters: [{name: a, cluster: {server: "https://127.0.0.1:1"}}]}`), 0o600))
	t.Setenv("KUBECONFIG", file)
	p := &plugin{config: genericclioptions.NewConfigFlags(true), system: "kuperator-system"}
	assert.Equal(t, dashboard.Scope{Text: "namespace shop", Context: "dev", System: "kuperator-system"}, p.scope("shop"))
	prod := "it's prod"
	p.config.Context, p.config.KubeConfig = &prod, &file
	scope := p.scope("shop")
	assert.Equal(t, prod, scope.Context)
	assert.Equal(t, `--context='it'\''s prod' --kubeconfig=`+file, scope.Flags)
}

// TestThePageAnswersFromWhatItWatches: a question lists no Pods, and none is answered about another namespace.
func TestThePageAnswersFromWhatItWatches(t *testing.T) {
	set := appsv1alpha1.CollaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "set"},
		Spec:   appsv1alpha1.CollaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
		Status: appsv1alpha1.CollaSetStatus{CurrentRevision: "web-1", UpdatedRevision: "web-1"}}
	owner := *metav1.NewControllerRef(&set, appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.CollaSetKind))
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "shop", Name: name, OwnerReferences: []metav1.OwnerReference{owner},
			Labels: map[string]string{"app": "web", appsv1.ControllerRevisionHashLabelKey: "web-1"}}
	}
	kube := kubefake.NewClientset(&appsv1.ControllerRevision{ObjectMeta: meta("web-1"), Revision: 1})
	f := &fleetSource{namespace: "shop", can: &revision.Capabilities{},
		facts: &insight.Facts{CollaSets: []appsv1alpha1.CollaSet{set}, Pods: []corev1.Pod{{ObjectMeta: meta("web-a")}}},
		s:     &session{kube: kube, clock: clock.RealClock{}, server: &serverTime{clock: clock.RealClock{}}}}
	details, err := f.Details(t.Context(), insight.Ref{Kind: "CollaSet", Namespace: "shop", Name: "web"})
	require.NoError(t, err)
	require.Len(t, details.Revisions, 1)
	assert.Equal(t, 1, details.Revisions[0].Pods)
	assert.True(t, details.Revisions[0].Updated)
	answer, err := f.Why(t.Context(), insight.Ref{Kind: "Pod", Namespace: "shop", Name: "web-a"})
	require.NoError(t, err)
	assert.Equal(t, insight.StateDown, answer.Pod.State)
	for _, action := range kube.Actions() {
		assert.Contains(t, []string{"controllerrevisions", "events"}, action.GetResource().Resource)
	}
	_, err = f.Details(t.Context(), insight.Ref{Kind: "CollaSet", Namespace: "shop", Name: "nothing"})
	require.ErrorContains(t, err, "there is no CollaSet nothing")
	_, err = f.Details(t.Context(), insight.Ref{Kind: "CollaSet", Namespace: "other", Name: "web"})
	require.ErrorContains(t, err, "this page shows namespace shop")
}

// TestWarningsAboutPodsAreBounded: one request, and what it leaves out is told.
func TestWarningsAboutPodsAreBounded(t *testing.T) {
	kube := kubefake.NewClientset()
	kube.PrependReactor("list", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &corev1.EventList{ListMeta: metav1.ListMeta{Continue: "more"}, Items: []corev1.Event{{Reason: "A"}}}, nil
	})
	facts := insight.Facts{}
	events, err := (&session{kube: kube}).podWarnings(t.Context(), "shop", &facts)
	require.NoError(t, err)
	assert.Len(t, events, 1)
	assert.Len(t, kube.Actions(), 1)
	require.Len(t, facts.Gaps, 1)
	assert.Equal(t, "some warnings about its Pods", facts.Gaps[0].Unsaid)
	list, isList := kube.Actions()[0].(clienttesting.ListAction)
	require.True(t, isList)
	assert.Equal(t, "involvedObject.kind=Pod,type=Warning", list.GetListRestrictions().Fields.String())
}

func TestDashboardRefusesWhatItCannotDo(t *testing.T) {
	for args, says := range map[string]string{
		"dashboard -o json":                "status --watch",
		"dashboard --address 0.0.0.0:8686": "loopback address only",
		"dashboard web":                    "unknown command",
	} {
		var problems bytes.Buffer
		code := Run(t.Context(), strings.Fields(args),
			genericiooptions.IOStreams{In: strings.NewReader(""), Out: &bytes.Buffer{}, ErrOut: &problems})
		assert.Equal(t, codeError, code, args)
		assert.Contains(t, problems.String(), says, args)
	}
}
