package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/insight"
	"kusionstack.io/kuperator/internal/plugin"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/nightly"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// kuperator runs the plugin as administrator, or as whom --as names, and returns what it prints and its exit code.
func (w *world) kuperator(t *testing.T, namespace string, args ...string) (out, problems string, code int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: &stdout, ErrOut: &stderr}
	code = plugin.Run(t.Context(), append([]string{"--kubeconfig", w.AdminKubeconfig, "-n", namespace}, args...), streams)
	return stdout.String(), stderr.String(), code
}

// does runs the plugin, which has to work.
func (w *world) does(t *testing.T, namespace string, args ...string) string {
	t.Helper()
	out, problems, code := w.kuperator(t, namespace, args...)
	require.Zero(t, code, "kubectl kuperator %s: %s%s", strings.Join(args, " "), out, problems)
	return out
}

// why asks what keeps the subject.
func (w *world) why(t *testing.T, namespace, subject string, flags ...string) (insight.Answer, error) {
	t.Helper()
	out, problems, code := w.kuperator(t, namespace, append([]string{"why", subject, "-o", "json"}, flags...)...)
	var answer insight.Answer
	if code != 0 {
		return answer, fmt.Errorf("exit code %d: %s", code, problems)
	}
	require.NoError(t, json.Unmarshal([]byte(out), &answer))
	return answer, nil
}

// waitBlocker waits until why names the blocker, and returns the answer.
func (w *world) waitBlocker(t *testing.T, namespace, subject string, want insight.Code) (answer insight.Answer) {
	t.Helper()
	await.Nil(t, fmt.Sprintf("why %s to name %s", subject, want), func() error {
		var err error
		if answer, err = w.why(t, namespace, subject); err != nil {
			return err
		}
		if answer.Blocker == nil || answer.Blocker.Code != want {
			return fmt.Errorf("it says %+v", answer.Reasons)
		}
		return nil
	})
	require.NotEmpty(t, answer.Blocker.Message)
	if testing.Verbose() {
		t.Log("\n" + w.does(t, namespace, "why", subject))
	}
	return answer
}

// onePod starts a CollaSet of one Pod and returns that when it serves.
func (w *world) onePod(t *testing.T, namespace, name string) string {
	t.Helper()
	w.create(t, workload.CollaSet(namespace, name, image1, 1))
	w.waitServing(t, namespace, name, 1, image1)
	return "pod/" + w.pods(t, namespace, name)[0].Name
}

// TestWhyNamesTheTrueBlocker: the suite as it runs, in ways of standing still, and what kubectl kuperator says.
func TestWhyNamesTheTrueBlocker(t *testing.T) {
	w := together(t)
	ns := w.namespace(t)

	t.Run("a rule whose budget a broken image holds", func(t *testing.T) {
		w.create(t, workload.Rule(ns, "spent", "1"), workload.CollaSet(ns, "spent", image1, 3))
		w.waitServing(t, ns, "spent", 3, image1)
		w.setImage(t, ns, "spent", "web:non-exist")
		var broken, waiting string
		await.Nil(t, "one Pod to be stuck and the others to ask", func() error {
			broken, waiting = "", ""
			for _, pod := range w.pods(t, ns, "spent") {
				switch o := podops.OperationOf(podops.Read(&pod), "collaset"); {
				case pod.Spec.Containers[0].Image != image1:
					broken = pod.Name
				case o.Phase == podops.PhasePreCheck:
					waiting = pod.Name
				}
			}
			if broken == "" || waiting == "" {
				return errors.New("not yet")
			}
			return nil
		})
		var spent *insight.Reason
		await.Nil(t, "the holder to be named with its own blocker", func() error {
			spent = w.waitBlocker(t, ns, "pod/"+waiting, insight.CodeBudgetSpent).Blocker
			if len(spent.Holders) != 1 || spent.Holders[0].WaitsFor == nil ||
				spent.Holders[0].WaitsFor.Code != insight.CodeImagePull {
				return fmt.Errorf("%+v", spent.Holders)
			}
			return nil
		})
		require.Equal(t, broken, spent.Holders[0].Pod)
		require.True(t, spent.Holders[0].Granted)
		require.NotNil(t, spent.Holders[0].Since)
		require.Equal(t, &insight.Ref{Kind: "PodTransitionRule", Namespace: ns, Name: "spent"}, spent.On)

		t.Run("image pull", func(t *testing.T) {
			answer := w.waitBlocker(t, ns, "pod/"+broken, insight.CodeImagePull)
			require.Contains(t, answer.Blocker.Message, "web:non-exist")
			w.waitBlocker(t, ns, "collaset/spent", insight.CodeImagePull) // not the budget, which it holds itself
		})
	})

	t.Run("no node takes the Pod", func(t *testing.T) {
		set := workload.CollaSet(ns, "nowhere", image1, 1)
		set.Spec.Template.Spec.NodeSelector = map[string]string{"no-such": "node"}
		w.create(t, set)
		var pods []corev1.Pod
		await.Nil(t, "the Pod", func() error {
			if pods = w.pods(t, ns, "nowhere"); len(pods) == 0 {
				return errors.New("none")
			}
			return nil
		})
		await.Nil(t, "the scheduler's reason", func() error {
			message := w.waitBlocker(t, ns, "pod/"+pods[0].Name, insight.CodeUnschedulable).Blocker.Message
			if !strings.Contains(message, "didn't match Pod's node affinity/selector") {
				return errors.New(message) // the scheduler has not looked at the Pod yet
			}
			return nil
		})
		w.waitBlocker(t, ns, "collaset/nowhere", insight.CodeUnschedulable)
	})

	t.Run("a freeze", func(t *testing.T) {
		frozen := w.namespace(t)
		pod := w.onePod(t, frozen, "cold")
		require.Contains(t, w.does(t, frozen, "freeze", frozen, "--reason", "release week"), "frozen")
		w.setImage(t, frozen, "cold", image2)
		answer := w.waitBlocker(t, frozen, pod, insight.Code(podops.WaitFrozen))
		require.Contains(t, answer.Blocker.Message, "release week")
		require.Contains(t, w.does(t, frozen, "unfreeze", frozen), "unfrozen")
		w.waitServing(t, frozen, "cold", 1, image2)
	})

	t.Run("a quota", func(t *testing.T) {
		narrow := w.namespace(t)
		w.create(t, &corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Namespace: narrow, Name: "pods"},
			Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}},
		}, workload.CollaSet(narrow, "many", image1, 3))
		answer := w.waitBlocker(t, narrow, "collaset/many", insight.CodeQuota)
		require.Contains(t, answer.Blocker.Message, "exceeded quota: pods")
		_, problems, code := w.kuperator(t, narrow, "why", "pod/many-xyz")
		require.Equal(t, 1, code)
		require.Contains(t, problems, "why collaset/many", "a Pod that is not there leads to its workload")
	})

	t.Run("paused", func(t *testing.T) {
		pod := w.onePod(t, ns, "still")
		require.Contains(t, w.does(t, ns, "pause", "collaset/still"), "paused")
		w.setImage(t, ns, "still", image2)
		answer := w.waitBlocker(t, ns, pod, insight.CodePaused)
		require.Contains(t, answer.Blocker.Next, "resume")
		require.Contains(t, w.does(t, ns, "resume", "still"), "resumed")
		w.waitServing(t, ns, "still", 1, image2)
		answer, err := w.why(t, ns, pod)
		require.NoError(t, err)
		require.Nil(t, answer.Blocker, "and now nothing: %+v", answer.Reasons)
	})

	t.Run("a job", func(t *testing.T) { w.jobWaitsAndGoesOn(t) })
}

// jobWaitsAndGoesOn has a job restart the containers of a frozen CollaSet in place, and replace one of its Pods.
func (w *world) jobWaitsAndGoesOn(t *testing.T) {
	ns := w.namespace(t)
	w.create(t, workload.CollaSet(ns, "job", image1, 2))
	w.waitServing(t, ns, "job", 2, image1)
	before := w.pods(t, ns, "job")
	w.does(t, ns, "freeze", ns, "--reason", "audit")
	var job appsv1alpha1.OperationJob
	out := w.does(t, ns, "restart", "collaset/job", "--in-place", "--parallelism=1", "--detach", "-o", "json")
	require.NoError(t, json.Unmarshal([]byte(out), &job))
	answer := w.waitBlocker(t, ns, "operationjob/"+job.Name, insight.Code(podops.WaitFrozen))
	require.Contains(t, answer.Blocker.Message, "audit")
	require.Len(t, answer.Job.Targets, 1)
	answer = w.waitBlocker(t, ns, "pod/"+answer.Job.Targets[0].Pod, insight.Code(podops.WaitFrozen))
	require.Equal(t, job.Name, answer.Pod.Operations[0].Job)
	require.Contains(t, w.does(t, ns, "status"), "0 of 2 targets done, 1 under way")

	w.does(t, ns, "unfreeze", ns)
	w.waitSucceeded(t, &job)
	after := w.pods(t, ns, "job")
	require.ElementsMatch(t, workload.UIDs(before), workload.UIDs(after))
	for _, pod := range after {
		require.Contains(t, pod.Spec.Containers[0].Image, image1+"@sha256:", "it was restarted by another name")
	}

	w.does(t, ns, "freeze", ns, "--reason", "audit")
	out = w.does(t, ns, "replace", "pod/"+before[0].Name, "--detach", "-o", "json")
	require.NoError(t, json.Unmarshal([]byte(out), &job))
	await.Nil(t, "the Pod to name the job that asks for its replacement", func() error {
		answer, err := w.why(t, ns, "pod/"+before[0].Name)
		if err != nil || len(answer.Pod.Marks) == 0 {
			return fmt.Errorf("%+v: %w", answer, err)
		}
		require.Equal(t, []string{"operationjob/" + job.Name}, answer.Pod.Marks[0].Askers)
		return nil
	})
	_, problems, code := w.kuperator(t, ns, "replace", "pod/"+before[0].Name, "--cancel")
	require.Equal(t, 1, code)
	require.Contains(t, problems, "delete operationjob/"+job.Name)
	w.does(t, ns, "unfreeze", ns)
	w.waitSucceeded(t, &job)

	_, problems, code = w.kuperator(t, ns, "restart", "pod/"+after[1].Name, "-c", "no-such")
	require.Equal(t, 1, code)
	require.Contains(t, problems, after[1].Name+": ContainerNotFound: ")
}

// TestWhyNamesWhatIsNotRunning: the same for what does not run, and for a rule that asks a server.
func TestWhyNamesWhatIsNotRunning(t *testing.T) {
	w := alone(t)
	ns := w.namespace(t)

	t.Run("a webhook rule", func(t *testing.T) {
		w.webhookRuleBlocks(t, ns)
	})

	t.Run("a protection finalizer", func(t *testing.T) {
		w.create(t, workload.Service(ns, "held"))
		pod := w.onePod(t, ns, "held")
		require.NoError(t, w.StopComponent(suite.ResourceConsist))
		w.setImage(t, ns, "held", image2)
		answer := w.waitBlocker(t, ns, pod, insight.CodeProtectionFinalizer)
		require.Equal(t, &insight.Ref{Kind: "Service", Namespace: ns, Name: "held"}, answer.Blocker.On)
		require.True(t, slices.ContainsFunc(answer.Reasons, func(r insight.Reason) bool {
			return r.Code == insight.CodeControllerMissing && strings.Contains(r.Message, suite.ResourceConsist)
		}), "and whose controller is away: %+v", answer.Reasons)
		require.NoError(t, w.Restart(t.Context(), suite.ResourceConsist))
		w.waitServing(t, ns, "held", 1, image2)
	})

	t.Run("a kubelet that does not move", func(t *testing.T) {
		pod := w.onePod(t, ns, "kubelet")
		require.NoError(t, w.Cluster.StopComponent("kwok"))
		defer func() { require.NoError(t, w.Cluster.StartComponent(context.WithoutCancel(t.Context()), "kwok")) }()
		w.setImage(t, ns, "kubelet", image2)
		answer := w.waitBlocker(t, ns, pod, insight.CodeKubeletBehind)
		require.Equal(t, "Node", answer.Blocker.On.Kind)
	})

	t.Run("lifecycle-controller does not run", func(t *testing.T) {
		pod := w.onePod(t, ns, "orphaned")
		require.NoError(t, w.StopComponent(suite.Lifecycle))
		w.setImage(t, ns, "orphaned", image2)
		answer := w.waitBlocker(t, ns, pod, insight.CodeControllerMissing)
		require.Contains(t, answer.Blocker.Message, suite.Lifecycle)
		require.NoError(t, w.Restart(t.Context(), suite.Lifecycle))
		w.waitServing(t, ns, "orphaned", 1, image2)
	})
}

// webhookRuleBlocks has a rule ask a server that takes its time.
func (w *world) webhookRuleBlocks(t *testing.T, ns string) {
	asked := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("Content-Type", "application/json")
		fmt.Fprint(out, `{"success":false,"message":"CHG-4711 is not approved"}`)
	}))
	t.Cleanup(asked.Close)
	// A controller that is asked to end gives its Lease back, so that the next need not wait for it.
	require.NoError(t, w.StopComponent(suite.PodTransitionRule))
	w.reconfigure(t, suite.PodTransitionRule, "--rule-webhook-allow=127.0.0.0/8")
	t.Cleanup(func() {
		require.NoError(t, w.StopComponent(suite.PodTransitionRule))
		w.restore(t)
	})
	ticket := workload.Rule(ns, "ticket", "1")
	ticket.Spec.Rules = []appsv1alpha1.TransitionRule{{Name: "approved",
		TransitionRuleDefinition: appsv1alpha1.TransitionRuleDefinition{
			Webhook: &appsv1alpha1.TransitionRuleWebhook{ClientConfig: appsv1alpha1.WebhookClientConfig{URL: asked.URL},
				FailurePolicy: ptr.To(appsv1alpha1.FailurePolicyFail)},
		}}}
	w.create(t, ticket)
	pod := w.onePod(t, ns, "ticket")
	w.setImage(t, ns, "ticket", image2)
	await.Nil(t, "what the webhook said", func() error {
		answer := w.waitBlocker(t, ns, pod, insight.CodeWebhookRule)
		if !strings.Contains(answer.Blocker.Message, "CHG-4711 is not approved") {
			return errors.New(answer.Blocker.Message)
		}
		require.Contains(t, answer.Blocker.Message, asked.URL)
		return nil
	})
}

// at names the Pods with an image.
func at(pods []corev1.Pod, image string) (names []string) {
	for _, pod := range pods {
		if pod.Spec.Containers[0].Image == image {
			names = append(names, pod.Name)
		}
	}
	return names
}

// pluginGuard is what runs the long stories of the plugin.
const pluginGuard = ".ci/run runs it for a change to internal/plugin"

// TestPluginOperatesACollaSet: what a rollout would do, what it did, and back.
func TestPluginOperatesACollaSet(t *testing.T) {
	nightly.Only(t, pluginGuard)
	w := together(t)
	ns := w.namespace(t)
	manifestOf := func(partition int, image, env string) string {
		path := filepath.Join(t.TempDir(), "web.yaml")
		require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `apiVersion: apps.kusionstack.io/v1alpha1
kind: CollaSet
metadata: {name: web, namespace: %s}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web, kusionstack.io/control: "true"}}
    spec: {containers: [{name: main, image: %q, env: [%s]}]}
  updateStrategy: {rollingUpdate: {byPartition: {partition: %d}}}
`, ns, image, env, partition), 0o600))
		return path
	}
	manifest := func(image, env string) string { return manifestOf(1, image, env) }
	type planned struct {
		Plans []struct {
			Ways   map[string]int
			Fields []string
			Pods   []struct {
				Name, Way string
				Order     int
			}
			Budgets []insight.Budget
		}
	}
	plan := func(args ...string) planned {
		var p planned
		require.NoError(t, json.Unmarshal([]byte(w.does(t, ns, append([]string{"plan", "-o", "json"}, args...)...)), &p))
		require.Len(t, p.Plans, 1)
		return p
	}
	w.kubectl(t, ns, "apply", "-f", manifest(image1, ""))
	w.create(t, workload.Rule(ns, "web", "1"))
	w.waitServing(t, ns, "web", 3, image1)
	waitRollout := func(t *testing.T, image string, n int) {
		t.Helper()
		await.Nil(t, fmt.Sprintf("%d Pods at %s and all in service", n, image), func() error {
			at := 0
			for _, pod := range w.pods(t, ns, "web") {
				if v := podops.Read(&pod); !v.Ready || !v.ServiceAvailable() || len(podops.Operations(v)) > 0 || v.Terminating {
					return fmt.Errorf("%s is not at rest", pod.Name)
				}
				if pod.Spec.Containers[0].Image == image {
					at++
				}
			}
			if at != n {
				return fmt.Errorf("%d are", at)
			}
			return nil
		})
	}

	t.Run("plan and diff foretell what apply does", func(t *testing.T) {
		image := plan("-f", manifest(image2, ""))
		require.Equal(t, map[string]int{"inPlace": 2, "held": 1}, image.Plans[0].Ways, "the partition keeps one")
		require.Len(t, image.Plans[0].Budgets, 1)
		env := plan("-f", manifest(image2, "{name: A, value: b}"))
		require.Equal(t, map[string]int{"recreate": 2, "held": 1}, env.Plans[0].Ways)
		require.Equal(t, []string{"template.spec.containers[main].env"}, env.Plans[0].Fields)
		out, _, code := w.kuperator(t, ns, "diff", "-f", manifest(image2, ""))
		require.Equal(t, 1, code, out)
		require.Contains(t, out, "-        image: "+image1)
		require.Contains(t, out, "2 changed in place, 1 kept as they are")
		_, _, code = w.kuperator(t, ns, "diff", "-f", manifest(image1, ""))
		require.Zero(t, code, "nothing changes")

		// Two that begin at once may come back either way round, whatever their order: the partition lets one at a time go.
		order := make([]string, 2)
		for _, p := range image.Plans[0].Pods {
			if p.Order > 0 {
				order[p.Order-1] = p.Name
			}
		}
		w.kubectl(t, ns, "apply", "-f", manifestOf(2, image2, ""))
		waitRollout(t, image2, 1)
		require.Equal(t, order[:1], at(w.pods(t, ns, "web"), image2), "plan said who comes first")
		w.kubectl(t, ns, "apply", "-f", manifest(image2, ""))
		waitRollout(t, image2, 2)
		require.ElementsMatch(t, order, at(w.pods(t, ns, "web"), image2), "plan said who comes second")
		require.Equal(t, map[string]int{"updated": 2, "held": 1}, plan("collaset/web").Plans[0].Ways)
		for _, pod := range w.pods(t, ns, "web") {
			if pod.Spec.Containers[0].Image == image1 {
				require.Equal(t, insight.CodeHeldByPartition,
					w.waitBlocker(t, ns, "pod/"+pod.Name, insight.CodeHeldByPartition).Blocker.Code)
			}
		}
	})

	t.Run("history and undo", func(t *testing.T) {
		out := w.does(t, ns, "history", "collaset/web")
		require.Contains(t, out, "main="+image1)
		require.Contains(t, out, "in place")
		require.Contains(t, w.does(t, ns, "undo", "collaset/web", "--dry-run=server"), "dry run")
		require.Contains(t, w.does(t, ns, "undo", "collaset/web"), "goes back to revision 1")
		waitRollout(t, image1, 3)
		w.kubectl(t, ns, "apply", "-f", manifest(image3, ""))
		await.Nil(t, "the rollout to begin", func() error {
			for _, pod := range w.pods(t, ns, "web") {
				if len(podops.Operations(podops.Read(&pod))) > 0 {
					return nil
				}
			}
			return errors.New("no operation yet")
		})
		require.Contains(t, w.does(t, ns, "undo", "collaset/web"), "goes back to revision",
			"while the status changes all the time")
		waitRollout(t, image1, 3)
		_, problems, code := w.kuperator(t, ns, "undo", "collaset/web", "--to-revision=99")
		require.Equal(t, 1, code)
		require.Contains(t, problems, "history")
	})

	t.Run("set image, promote and abort", func(t *testing.T) {
		waited := func() string {
			return w.does(t, ns, "status", "collaset/web", "--wait", "--timeout", await.Patience.String())
		}
		require.Contains(t, w.does(t, ns, "set", "image", "collaset/web", "main="+image2), "main: "+image1+" -> "+image2)
		require.Contains(t, waited(), "successfully rolled out: the partition keeps back 1 Pod")
		waitRollout(t, image2, 2)
		text := w.does(t, ns, "status", "collaset/web")
		require.Contains(t, text, "rule "+ns+"/web", "the budget is shown at rest")
		for _, pod := range w.pods(t, ns, "web") {
			require.Regexp(t, "(?m)^  "+pod.Name+" .*Serving", text, "a line for each Pod")
		}
		require.Contains(t, w.does(t, ns, "promote", "web", "--partition", "1"), "nothing to do")
		require.Contains(t, w.does(t, ns, "promote", "web"), "3 of 3 Pods are to be at")
		require.Contains(t, waited(), "successfully rolled out")
		waitRollout(t, image2, 3)

		require.Contains(t, w.does(t, ns, "set", "image", "web", "*="+image3), "image updated")
		await.Nil(t, "a Pod to be at the new image", func() error {
			if len(at(w.pods(t, ns, "web"), image3)) == 0 {
				return errors.New("none is")
			}
			return nil
		})
		require.Contains(t, w.does(t, ns, "abort", "web"), "collaset/web stops its rollout to")
		require.Contains(t, waited(), "successfully rolled out")
		waitRollout(t, image2, 3)
		require.Contains(t, w.does(t, ns, "why"), "Nothing waits in namespace "+ns)
		require.Equal(t, "collaset.apps.kusionstack.io/web\n", w.does(t, ns, "status", "-o", "name"))
		w.kubectl(t, ns, "apply", "-f", manifest(image1, ""))
		waitRollout(t, image1, 2)
		w.does(t, ns, "promote", "web")
		waitRollout(t, image1, 3)
		w.kubectl(t, ns, "apply", "-f", manifest(image1, ""))
	})

	t.Run("restart and replace", func(t *testing.T) {
		before := workload.UIDs(w.pods(t, ns, "web"))
		w.does(t, ns, "restart", "collaset/web")
		await.Nil(t, "two of three Pods to be new", func() error {
			kept := 0
			for _, uid := range workload.UIDs(w.pods(t, ns, "web")) {
				if slices.Contains(before, uid) {
					kept++
				}
			}
			if kept != 1 {
				return fmt.Errorf("%d are the same", kept)
			}
			return nil
		})
		waitRollout(t, image1, 3)
		old := w.pods(t, ns, "web")[0].Name
		require.Contains(t, w.does(t, ns, "replace", "pod/"+old), "succeeded: 1 of 1 targets done")
		for _, pod := range w.pods(t, ns, "web") {
			require.False(t, pod.Name == old && pod.DeletionTimestamp == nil, "the command waits until it is gone")
		}
		waitRollout(t, image1, 3)
	})

	t.Run("drain-check", func(t *testing.T) {
		node := w.pods(t, ns, "web")[0].Spec.NodeName
		check := func() (d insight.Drain, code int) {
			out, problems, code := w.kuperator(t, ns, "drain-check", node, "-o", "json")
			require.NoError(t, json.Unmarshal([]byte(out), &d), problems)
			d.Pods = slices.DeleteFunc(d.Pods, func(p insight.DrainedPod) bool { return p.Namespace != ns })
			return d, code
		}
		for _, p := range first(check()).Pods {
			require.Equal(t, insight.DrainWaits, p.Verdict, "one at a time: %+v", p)
		}
		w.does(t, ns, "freeze", ns, "--reason", "test")
		d, code := check()
		require.Equal(t, 2, code)
		for _, p := range d.Pods {
			require.Equal(t, insight.DrainHeld, p.Verdict)
			require.Equal(t, insight.Code(podops.WaitFrozen), p.Reasons[0].Code)
		}
		w.does(t, ns, "unfreeze", ns)
	})

	t.Run("doctor", func(t *testing.T) {
		out, problems, _ := w.kuperator(t, ns, "doctor", "-o", "json")
		var d insight.Diagnosis
		require.NoError(t, json.Unmarshal([]byte(out), &d), problems)
		ok := map[string]bool{}
		for _, f := range d.Findings {
			ok[f.Check] = ok[f.Check] || f.Level == insight.LevelOK
		}
		for _, check := range []string{"API server", "clock", "CRDs", "components", "namespace", "webhooks", "permissions"} {
			require.True(t, ok[check], "%s: %s", check, out)
		}
	})

	t.Run("completion knows names", func(t *testing.T) {
		require.Contains(t, w.does(t, ns, "__complete", "pause", "collaset/w"), "collaset/web")
		require.Contains(t, w.does(t, ns, "__complete", "why", "pod/"), "pod/web-")
	})
}

// TestDoctorMissesAComponent: what does not run is named.
func TestDoctorMissesAComponent(t *testing.T) {
	w := alone(t)
	ns := w.namespace(t)
	w.down(t, suite.ResourceConsist)
	out, _, _ := w.kuperator(t, ns, "doctor")
	require.Contains(t, out, suite.ResourceConsist+" is not running")
}

func first[A, B any](a A, _ B) A { return a }

// TestPluginWithTheRightsOfATeam: kubectl finds the plugin; the roles view and edit of one namespace are enough, and
// what they do not show is said.
func TestPluginWithTheRightsOfATeam(t *testing.T) {
	nightly.Only(t, pluginGuard)
	w := together(t)
	ns := w.namespace(t)
	pod := w.onePod(t, ns, "web")
	for user, roles := range map[string][]string{"viewer": {"view"}, "editor": {"edit"},
		"oncall": {"view", "kuperator-operate"}} {
		for _, role := range roles {
			w.create(t, &rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: user + "-" + role},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
				Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
			})
		}
	}
	await.Nil(t, "the roles to be joined and bound", func() error {
		_, problems, code := w.kuperator(t, ns, "status", "collaset/web", "--as=viewer")
		if code != 0 {
			return errors.New(problems)
		}
		return nil
	})

	t.Run("view sees workloads, and what it does not see", func(t *testing.T) {
		out := w.does(t, ns, "status", "--as=viewer")
		require.Contains(t, out, "CollaSet "+ns+"/web  1 of 1 Pods: 1 serving")
		answer, err := w.why(t, ns, pod, "--as=viewer")
		require.NoError(t, err)
		missing := map[string]bool{}
		for _, g := range answer.Gaps {
			missing[g.Missing] = true
		}
		require.True(t, missing["list leases.coordination.k8s.io in namespace kuperator-system"], "%+v", answer.Gaps)
		require.True(t, missing["get namespaces/kuperator-system in the cluster"], "%+v", answer.Gaps)
	})
	t.Run("view changes nothing, and is told what it lacks", func(t *testing.T) {
		_, problems, code := w.kuperator(t, ns, "pause", "web", "--as=viewer")
		require.Equal(t, 1, code)
		require.Contains(t, problems, `cannot patch resource "collasets"`)
		require.Contains(t, problems, "kuperator-edit")
	})
	t.Run("edit pauses and resumes", func(t *testing.T) {
		require.Contains(t, w.does(t, ns, "pause", "web", "--as=editor", "--dry-run=server"), "dry run")
		require.Contains(t, w.does(t, ns, "resume", "web", "--as=editor"), "nothing to do")
		w.does(t, ns, "pause", "web", "--as=editor")
		require.Contains(t, w.does(t, ns, "status", "--as=viewer"), "Paused")
		w.does(t, ns, "resume", "web", "--as=editor")
	})
	t.Run("who is on call promotes, and gives no Pod another image", func(t *testing.T) {
		w.kubectl(t, ns, "patch", "collaset", "web", "--type=merge", "-p",
			`{"spec":{"updateStrategy":{"rollingUpdate":{"byPartition":{"partition":1}}}}}`)
		require.Contains(t, w.does(t, ns, "promote", "web", "--as=oncall"), "promoted")
		w.does(t, ns, "pause", "web", "--as=oncall")
		w.does(t, ns, "resume", "web", "--as=oncall")
		await.Nil(t, "the policy to be in force", func() error {
			_, problems, code := w.kuperator(t, ns, "set", "image", "web", "main="+image2, "--dry-run=server", "--as=oncall")
			if code != 1 || !strings.Contains(problems, "the role kuperator-operate does not cover that; the role edit does") {
				return fmt.Errorf("exit code %d: %s", code, problems)
			}
			return nil
		})
	})
	t.Run("status --watch shows what changes", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
		defer cancel()
		read, write := io.Pipe()
		defer read.Close()
		go func() {
			streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: write, ErrOut: t.Output()}
			plugin.Run(ctx, []string{"--kubeconfig", w.AdminKubeconfig, "-n", ns, "--as=viewer", "status", "collaset/web",
				"--watch", "-o", "json"}, streams)
			write.Close()
		}()
		states := json.NewDecoder(read)
		shows := func(paused bool) {
			for {
				var fleet insight.Fleet
				require.NoError(t, states.Decode(&fleet), "waiting for paused to be %t", paused)
				if len(fleet.Workloads) == 1 && fleet.Workloads[0].Paused == paused {
					return
				}
			}
		}
		shows(false)
		w.does(t, ns, "pause", "web")
		shows(true)
		w.does(t, ns, "resume", "web")
		shows(false)
	})
	t.Run("edit freezes no namespace", func(t *testing.T) {
		_, problems, code := w.kuperator(t, ns, "freeze", ns, "--reason", "x", "--as=editor")
		require.Equal(t, 1, code)
		require.Contains(t, problems, `cannot patch resource "namespaces"`)
	})
	t.Run("kubectl finds it", func(t *testing.T) {
		bin := t.TempDir()
		build := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "kusionstack.io/kuperator/cmd/kubectl-kuperator")
		out, err := build.CombinedOutput()
		require.NoError(t, err, string(out))
		script, err := os.ReadFile("../../cmd/kubectl-kuperator/kubectl_complete-kuperator")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(bin, "kubectl_complete-kuperator"), script, 0o700))
		require.NoError(t, os.Symlink(w.KubectlPath(), filepath.Join(bin, "kubectl")))
		kubectl := func(args ...string) string {
			command := exec.CommandContext(t.Context(), w.KubectlPath(), args...)
			command.Env = append(os.Environ(), "KUBECONFIG="+w.AdminKubeconfig, "KUBERC=off",
				"PATH="+bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
			out, err := command.CombinedOutput()
			require.NoError(t, err, string(out))
			return string(out)
		}
		require.Contains(t, kubectl("kuperator", "status", "-n", ns), "CollaSet "+ns+"/web")
		require.Contains(t, kubectl("__complete", "kuperator", "why", "-n", ns, "pod/"), pod, "kubectl completes its words")
	})
}
