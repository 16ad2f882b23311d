package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/client/clientset/versioned/fake"
	"kusionstack.io/kuperator/internal/revision"
)

// canary is a CollaSet in the middle of a rollout: four of ten Pods are updated, as the partition has it.
func canary() *appsv1alpha1.CollaSet {
	set := &appsv1alpha1.CollaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "set", Generation: 2}}
	set.Spec.Replicas = ptr.To[int32](10)
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	set.Spec.Template.Spec.InitContainers = []corev1.Container{{Name: "setup", Image: "setup:1"}}
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "web:2"}, {Name: "proxy",
		Image: "proxy:1"}}
	set.Spec.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{
		ByPartition: &appsv1alpha1.ByPartition{Partition: ptr.To(intstr.FromInt32(6))}}
	set.Status = appsv1alpha1.CollaSetStatus{ObservedGeneration: 2, CurrentRevision: "web-1", UpdatedRevision: "web-2",
		Replicas: 10, AvailableReplicas: 9, UpdatedReplicas: 4, UpdatedAvailableReplicas: 3}
	return set
}

// complete makes a rollout one that has ended.
func complete(set *appsv1alpha1.CollaSet) {
	set.Status.Conditions = []metav1.Condition{{Type: appsv1alpha1.CollaSetProgressing, Status: metav1.ConditionTrue,
		Reason: string(appsv1alpha1.ReasonRolloutComplete), ObservedGeneration: set.Generation}}
}

// canaryServer answers as an API server does that has one CollaSet, its revisions, and the suite's Deployments.
type canaryServer struct {
	set         *appsv1alpha1.CollaSet
	deployments []appsv1.Deployment
	forbidden   bool // to list Deployments
	// refused is the answer to a write, by its body; "" writes it.
	refused func(body string) (message string, reason metav1.StatusReason, code int32)
	// warning is what admission warns of; empty is nothing.
	warning string

	written []string // method, path, query and body
}

func (s *canaryServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.Method != http.MethodGet {
		body, _ := io.ReadAll(r.Body)
		s.written = append(s.written, r.Method+" "+r.URL.Path+" "+r.URL.Query().Get("dryRun")+" "+string(body))
		if s.warning != "" {
			w.Header().Set("Warning", `299 - "`+s.warning+`"`)
		}
		if s.refused != nil {
			if message, reason, code := s.refused(string(body)); message != "" {
				w.WriteHeader(int(code))
				_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
					Status: metav1.StatusFailure, Reason: reason, Code: code, Message: message})
				return
			}
		}
	}
	var answer any
	switch last := path.Base(r.URL.Path); {
	case last == s.set.Name:
		answer = s.set
	case last == "controllerrevisions":
		list := appsv1.ControllerRevisionList{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1",
			Kind: "ControllerRevisionList"}}
		for i, name := range []string{"web-1", "web-2"} {
			r := appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{
				{UID: s.set.UID, Controller: ptr.To(true)}}}, Revision: int64(i + 1)}
			r.Data.Raw = []byte(`{"spec":{"template":{"$patch":"replace","metadata":{"labels":{"app":"web"}},` +
				`"spec":{"containers":[` +
				`{"name":"main","image":"` + strings.Replace(name, "-", ":", 1) + `"}]}}}}`)
			list.Items = append(list.Items, r)
		}
		answer = list
	case last == "deployments" && s.forbidden:
		w.WriteHeader(http.StatusForbidden)
		answer = metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden}
	case last == "deployments":
		answer = appsv1.DeploymentList{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DeploymentList"},
			Items: s.deployments}
	case last == "shop":
		answer = corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: last}}
	default:
		w.WriteHeader(http.StatusNotFound)
		answer = metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound,
			Message: last + " not found"}
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// runs runs a command against the server.
func (s *canaryServer) runs(t *testing.T, command string) (out, problems string, code int) {
	t.Helper()
	listener := httptest.NewServer(s)
	defer listener.Close()
	t.Setenv("KUBECONFIG", "/dev/null")
	var stdout, stderr bytes.Buffer
	code = Run(t.Context(), append([]string{"--server", listener.URL, "-n", "shop"}, strings.Fields(command)...),
		genericiooptions.IOStreams{In: strings.NewReader(""), Out: &stdout, ErrOut: &stderr})
	return stdout.String(), stderr.String(), code
}

// TestVerbsOfARollout: what each command prints and writes.
func TestVerbsOfARollout(t *testing.T) {
	const patched = "PATCH /apis/apps.kusionstack.io/v1alpha1/namespaces/shop/collasets/web"
	const asRead = `[{"op":"test","path":"/metadata/uid","value":"set"},` +
		`{"op":"test","path":"/metadata/generation","value":2},`
	byPartition := func(value string) string {
		return patched + `  {"metadata":{"uid":"set"},"spec":{"updateStrategy":{"rollingUpdate":{"byPartition":` +
			`{"partition":` + value + `}}}}}`
	}
	for command, tc := range map[string]struct {
		set     func(*appsv1alpha1.CollaSet)
		out     string
		problem string
		written string
	}{
		"promote web": {out: "collaset/web promoted\n  partition 6 -> 0\n" +
			"  10 of 10 Pods are to be at web-2: 6 more than now\n",
			written: byPartition("null")},
		"promote collaset/web --partition=3": {out: "collaset/web promoted\n  partition 6 -> 3\n" +
			"  7 of 10 Pods are to be at web-2: 3 more than now\n", written: byPartition("3")},
		"promote cls web --partition 25%": {set: func(set *appsv1alpha1.CollaSet) { set.Spec.Paused = true },
			out: "collaset/web promoted\n  partition 6 -> 25%\n  7 of 10 Pods are to be at web-2: 3 more than now\n" +
				"  it is paused, and begins when it is resumed\n", written: byPartition(`"25%"`)},
		"promote web --partition 6":  {out: "collaset/web has that partition already: nothing to do\n"},
		"promote web --partition 7":  {problem: "cannot hold back more (7)"},
		"promote web --partition x":  {problem: "use a number of Pods, a percentage up to 100%, or all"},
		"promote web --partition -1": {problem: "use a number of Pods"},
		"promote web --dry-run=client --partition 0%": {out: "collaset/web promoted (client dry run)\n  partition 6 -> 0\n" +
			"  10 of 10 Pods are to be at web-2: 6 more than now\n"},
		"promote web --partition 0 -o json": {out: `{
  "object": {
    "kind": "CollaSet",
    "namespace": "shop",
    "name": "web"
  },
  "action": "promoted",
  "changed": true,
  "details": [
    "partition 6 -> 0",
    "10 of 10 Pods are to be at web-2: 6 more than now"
  ]
}
`, written: byPartition("null")},

		"abort web": {out: "collaset/web stops its rollout to web-2, and goes back to revision 1 (web-1)\n  main=web:1\n",
			written: patched + "  " + asRead + `{"op":"replace","path":"/spec/template","value":{"metadata":{"labels":` +
				`{"app":"web"}},"spec":{"containers":[{"image":"web:1","name":"main"}]}}}]`},
		"abort collaset/web --dry-run": {out: "collaset/web stops its rollout to web-2, and goes back to revision 1 " +
			"(web-1) (client dry run)\n  main=web:1\n"},
		"abort cls/web": {set: func(set *appsv1alpha1.CollaSet) { set.Status.UpdatedRevision = "web-1" },
			out: "collaset/web has no rollout under way: nothing to do\n"},
		"abort cls web": {set: func(set *appsv1alpha1.CollaSet) { set.Status.CurrentRevision = "web-0" },
			problem: "revision web-0, which the Pods of collaset/web came from, does not exist any more"},

		"undo web --to-revision 1 --dry-run": {out: "collaset/web goes back to revision 1 (web-1) (client dry run)\n" +
			"  main=web:1\n"},
		"undo web --to-revision 1 --dry-run=client": {set: func(set *appsv1alpha1.CollaSet) {
			set.Spec.Paused, set.Status.OperatingReplicas = true, 1
		}, out: "collaset/web goes back to revision 1 (web-1) (client dry run)\n  main=web:1\n" +
			"  it is paused: Pods on which an operation has begun go back within it, and the others when it is resumed\n"},

		"set image web main=web:3 setup=setup:2": {out: "collaset/web image updated\n  main: web:2 -> web:3\n" +
			"  setup: setup:1 -> setup:2\n  the partition keeps back 6 Pods\n",
			written: patched + "  " + asRead + `{"op":"add","path":"/spec/template/spec/containers/0/image","value":"web:3"},` +
				`{"op":"add","path":"/spec/template/spec/initContainers/0/image","value":"setup:2"}]`},
		"set image collaset web *=web:2 --dry-run=server": {out: "collaset/web image updated (server dry run)\n" +
			"  setup: setup:1 -> web:2\n  proxy: proxy:1 -> web:2\n  the partition keeps back 6 Pods\n",
			written: patched + " All " + asRead +
				`{"op":"add","path":"/spec/template/spec/initContainers/0/image","value":"web:2"},` +
				`{"op":"add","path":"/spec/template/spec/containers/1/image","value":"web:2"}]`},
		"set image web main=web:2": {out: "collaset/web has these images already: nothing to do\n"},
		"set image web side=web:2": {problem: "collaset/web: there is no container side: use one of setup, main, proxy"},
		"set image web":            {problem: "an image is missing: give it as CONTAINER=IMAGE"},
		"set image main=web:2":     {problem: "give it as collaset/NAME"},

		"history web --revision 1": {out: "collaset/web revision 1 (web-1)\n  main=web:1\n" +
			"-o yaml has the whole template\n"},
		"history collaset/web --revision=9": {problem: "has no revision 9: kubectl kuperator history collaset/web lists"},
		"history collaset/web --revision=2 -o yaml": {out: `collaSet:
  kind: CollaSet
  name: web
  namespace: shop
created: "0001-01-01T00:00:00Z"
images:
- main=web:2
name: web-2
revision: 2
template:
  metadata:
    labels:
      app: web
  spec:
    containers:
    - image: web:2
      name: main
`},

		"status web --wait": {set: complete,
			out: "collaset \"web\" successfully rolled out: the partition keeps back 6 Pods\n"},
		"status collaset/web --wait": {set: func(set *appsv1alpha1.CollaSet) { set.Spec.Paused = true },
			problem: "collaset/web is paused: resume it with"},
		"status cls web --wait -o json": {set: complete, out: `{
  "collaSet": {
    "kind": "CollaSet",
    "namespace": "shop",
    "name": "web"
  },
  "state": "Done",
  "message": "the partition keeps back 6 Pods"
}
`},
		"status pod/web --wait":           {problem: "--wait is for a CollaSet, and pod/web is none: use --watch"},
		"status --wait":                   {problem: "--wait is for one CollaSet: give it as collaset/NAME"},
		"status web --wait --watch":       {problem: "leave one out"},
		"status web --timeout 5m":         {problem: "--timeout is for --wait"},
		"status web --wait --timeout=-1s": {problem: "use a time such as 5m"},
		"status other --wait":             {problem: "reading collaset/other in namespace shop"},
	} {
		t.Run(command, func(t *testing.T) {
			s := &canaryServer{set: canary()}
			if tc.set != nil {
				tc.set(s.set)
			}
			out, problems, code := s.runs(t, command)
			require.Contains(t, problems, tc.problem)
			require.Equal(t, tc.problem != "", code != codeOK, problems)
			require.Equal(t, tc.out, out)
			require.Equal(t, tc.written, strings.Join(s.written, "\n"))
		})
	}
}

// waits is what a command prints and returns that waits for a rollout, while the CollaSet becomes what read returns.
func waits(
	t *testing.T, timeout time.Duration, interruptAfter time.Duration,
	read func(since time.Duration) (*appsv1alpha1.CollaSet, error),
) (out, problems string, took time.Duration, err error) {
	t.Helper()
	begin := time.Now()
	suite := fake.NewClientset()
	suite.PrependReactor("get", "collasets", func(clienttesting.Action) (bool, runtime.Object, error) {
		set, err := read(time.Since(begin))
		return true, set, err
	})
	var stdout, stderr bytes.Buffer
	p := &plugin{IOStreams: genericiooptions.IOStreams{Out: &stdout, ErrOut: &stderr}}
	s := &session{namespace: "shop", suite: suite, clock: clock.RealClock{}}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	if interruptAfter > 0 {
		time.AfterFunc(interruptAfter, stop)
	}
	err = p.waitForRollout(ctx, s, "web", timeout)
	return stdout.String(), stderr.String(), time.Since(begin).Truncate(lookEvery), err
}

func TestWaitingForARollout(t *testing.T) {
	const four, three = "Waiting for rollout to finish: 3 of 4 updated Pods are available...\n", 3 * time.Second
	under := func(time.Duration) (*appsv1alpha1.CollaSet, error) {
		set := canary()
		set.Status.Blockers = []appsv1alpha1.Blocker{{Reason: "WaitingForContainers", Message: "Pod web-a: it crashes",
			Count: 1}}
		return set, nil
	}
	then := func(change func(*appsv1alpha1.CollaSet)) func(time.Duration) (*appsv1alpha1.CollaSet, error) {
		return func(since time.Duration) (*appsv1alpha1.CollaSet, error) {
			set, _ := under(since)
			if since >= three {
				change(set)
			}
			return set, nil
		}
	}
	away := func(err error) func(time.Duration) (*appsv1alpha1.CollaSet, error) {
		return func(since time.Duration) (*appsv1alpha1.CollaSet, error) {
			if set, _ := under(since); since < time.Second {
				return set, nil
			} else if complete(set); since > time.Minute {
				return set, nil
			}
			return nil, err
		}
	}
	for name, tc := range map[string]struct {
		timeout, interrupt time.Duration
		read               func(time.Duration) (*appsv1alpha1.CollaSet, error)
		out, err, problems string
		took               time.Duration
	}{
		"done": {read: then(complete), took: three,
			out: four + "collaset \"web\" successfully rolled out: the partition keeps back 6 Pods\n"},
		"a line for each change": {took: three, read: func(since time.Duration) (*appsv1alpha1.CollaSet, error) {
			set := canary()
			set.Generation = 3
			switch {
			case since >= three:
				set.Status.ObservedGeneration = 3
				complete(set)
			case since >= 2*time.Second:
				set.Status.ObservedGeneration, set.Status.UpdatedAvailableReplicas = 3, 2
			}
			return set, nil
		}, out: "Waiting for rollout to finish: collaset-controller has not seen the present spec...\n" +
			"Waiting for rollout to finish: 2 of 4 updated Pods are available...\n" +
			"collaset \"web\" successfully rolled out: the partition keeps back 6 Pods\n"},
		"failed": {timeout: time.Hour, took: three, out: four, read: then(func(set *appsv1alpha1.CollaSet) {
			set.Status.Conditions = []metav1.Condition{{Type: appsv1alpha1.CollaSetStalled, Status: metav1.ConditionTrue,
				Reason: "RolloutHalted", Message: "it was stopped", ObservedGeneration: 2}}
		}), err: "the rollout of collaset/web has failed: RolloutHalted: it was stopped"},
		"paused": {took: three, out: four, read: then(func(set *appsv1alpha1.CollaSet) { set.Spec.Paused = true }),
			err: "collaset/web is paused: resume it with kubectl kuperator -n shop resume collaset/web"},
		"not in time": {timeout: three, read: under, took: three, out: four,
			err: "the rollout of collaset/web is not done after 3s: 3 of 4 updated Pods are available; " +
				"WaitingForContainers: Pod web-a: it crashes"},
		"stopped by its user": {timeout: time.Minute, interrupt: three, read: under, took: three, out: four,
			err: "interrupted", problems: "the rollout of collaset/web goes on\n"},
		"the API server is away for a moment": {timeout: time.Second * 20, read: away(errors.New("refused")), out: four,
			took: 20 * time.Second, err: "is not done after 20s: 3 of 4 updated"},
		"the API server is away": {read: away(errors.New("refused")), out: four, took: 31 * time.Second,
			err: "reading collaset/web in namespace shop: refused"},
		"it is deleted": {read: away(apierrors.NewNotFound(schema.GroupResource{Resource: "collasets"}, "web")), out: four,
			took: time.Second, err: "not found"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				out, problems, took, err := waits(t, tc.timeout, tc.interrupt, tc.read)
				if tc.err == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, tc.err)
				}
				require.Equal(t, tc.out, out)
				require.Equal(t, tc.problems, problems)
				require.Equal(t, tc.took, took)
			})
		})
	}
}

func TestVersion(t *testing.T) {
	before := version
	version = "v0.1.0"
	t.Cleanup(func() { version = before })
	deployment := func(name, image, label string) appsv1.Deployment {
		d := appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}}
		d.Labels = map[string]string{"app.kubernetes.io/version": label}
		d.Spec.Template.Spec.Containers = []corev1.Container{{Image: image}}
		return d
	}
	suite := []appsv1.Deployment{
		deployment("webhook-server", "registry:5000/webhook-server@sha256:ab", "v0.2.1"),
		deployment("collaset-controller", "kuperator/collaset-controller:v0.1.3", ""),
		deployment("lifecycle-controller", "lifecycle-controller", ""),
	}
	for command, tc := range map[string]struct {
		deployments []appsv1.Deployment
		forbidden   bool
		out         string
	}{
		"version": {deployments: suite, out: `kubectl kuperator v0.1.0
collaset-controller v0.1.3
lifecycle-controller of unknown version
webhook-server v0.2.1
warning: this is v0.1.0, which differs in more than the patch version from webhook-server v0.2.1: use the plugin of ` +
			"the suite's version\n"},
		"version -o yaml": {deployments: suite[1:2], out: `client: v0.1.0
components:
- name: collaset-controller
  version: v0.1.3
namespace: kuperator-system
`},
		"version --client":         {deployments: suite, out: "kubectl kuperator v0.1.0\n"},
		"version --client -o json": {deployments: suite, out: "{\n  \"client\": \"v0.1.0\"\n}\n"},
		"version --suite-namespace nowhere": {out: "kubectl kuperator v0.1.0\n" +
			"no component of the suite is installed in namespace nowhere: --suite-namespace chooses another\n"},
		"version --request-timeout 5s": {forbidden: true, out: "kubectl kuperator v0.1.0\nnot known: which versions run " +
			"(you may not list deployments.apps in namespace kuperator-system; the role view has that right)\n"},
	} {
		t.Run(command, func(t *testing.T) {
			s := &canaryServer{set: canary(), deployments: tc.deployments, forbidden: tc.forbidden}
			out, problems, code := s.runs(t, command)
			require.Zero(t, code, problems)
			require.Equal(t, tc.out, out)
		})
	}
}

// TestABareNameIsACollaSet where a workload is expected.
func TestABareNameIsACollaSet(t *testing.T) {
	for _, command := range []string{"pause", "resume", "undo --to-revision 1", "restart", "promote", "abort",
		"history --revision 1", "status --wait", "set image main=web:3"} {
		t.Run(command, func(t *testing.T) {
			s := &canaryServer{set: canary()}
			complete(s.set)
			_, problems, code := s.runs(t, command+" web")
			require.Zero(t, code, problems)
		})
	}
}

// TestForcedChangesAreTold: who promotes a rollout learns that it does not update Pods in place.
func TestForcedChangesAreTold(t *testing.T) {
	data := func(spec string) *revision.Data {
		found, err := revision.Parse([]byte(`{"spec":{"template":{"spec":` + spec + `}}}`))
		require.NoError(t, err)
		return found
	}
	from := data(`{"containers":[{"name":"main","image":"web:1"}]}`)
	image := revision.Explain(from, data(`{"containers":[{"name":"main","image":"web:2"}]}`), revision.Capabilities{})
	host := revision.Explain(from, data(`{"hostNetwork":true,"containers":[{"name":"main","image":"web:1"}]}`),
		revision.Capabilities{})
	require.Empty(t, forcedText("", image))
	require.Equal(t, "they are re-created because of template.spec.hostNetwork", forcedText("", host))
	require.Equal(t, "they are not updated (InPlaceOnly) because of template.spec.hostNetwork",
		forcedText(appsv1alpha1.PodUpdateInPlaceOnly, host))
}
