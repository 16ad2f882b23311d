package localkube_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/podstatus"
	"kusionstack.io/kuperator/internal/testkit/testcluster"
)

const (
	deadline = 3 * time.Minute
	poll     = 20 * time.Millisecond
	gate     = "example.com/in-service"
)

// victim tells TestMain to be the process that dies with its cluster running.
const victim = "LOCALKUBE_TEST_VICTIM"

func TestMain(m *testing.M) {
	if dir := os.Getenv(victim); dir != "" {
		if _, err := localkube.Start(context.Background(), localkube.Config{Dir: dir}); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("up")
		select {} // until killed
	}
	os.Exit(m.Run())
}

// notSimulated are fields that a kubelet writes and the simulated one does not: nothing in a cluster acts on them.
var notSimulated = regexp.MustCompile(`^conditions\[.*\]\.(message|observedGeneration)$|^(allocatedResources|resources)\.`)

func TestCluster(t *testing.T) {
	cluster := testcluster.Start(t, localkube.Config{
		Name: "all", Nodes: 3, WithControllerManager: true, WithScheduler: true, WithNodes: true, Audit: true,
	})
	client := clientFor(t, cluster)

	t.Run("all nodes are ready and may be scheduled to", func(t *testing.T) {
		nodes, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Len(t, nodes.Items, 3)
		for _, node := range nodes.Items {
			require.Empty(t, node.Spec.Taints)
			ready := slices.IndexFunc(node.Status.Conditions,
				func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
			require.Equal(t, corev1.ConditionTrue, node.Status.Conditions[ready].Status)
		}
	})

	t.Run("a Deployment's Pods run on the nodes and get ready", func(t *testing.T) {
		t.Parallel()
		namespace := testcluster.Namespace(t, cluster, nil)
		_, err := cluster.Kubectl(t.Context(), "-n", namespace, "create", "deployment", "web", "--image=web:1",
			"--replicas=3")
		require.NoError(t, err)
		_, err = cluster.Kubectl(t.Context(), "-n", namespace, "rollout", "status", "deployment/web",
			"--timeout="+deadline.String())
		require.NoError(t, err)
		pods, err := client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		addresses := map[string]bool{}
		for _, pod := range pods.Items {
			require.NotEmpty(t, pod.Spec.NodeName)
			addresses[pod.Status.PodIP] = true
		}
		require.Len(t, addresses, 3, "each Pod has an address of its own")
	})

	t.Run("an operation costs one status write for the image and one for the gate", func(t *testing.T) {
		t.Parallel()
		p := newPod(t, cluster, func(pod *corev1.Pod) {
			pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: gate}}
		})
		waiting := p.waitFor("running, not ready", func(pod *corev1.Pod) bool { return started(pod) && !ready(pod) })
		require.Equal(t, "ReadinessGatesNotReady", condition(waiting, corev1.PodReady).Reason)
		p.setConditions(gate, "True")
		before := p.waitFor("ready", ready)

		// Offline, as the lifecycle does it: the gate and Ready in one write.
		p.setConditions(gate, "False", string(corev1.PodReady), "False")
		p.patch(`{"spec":{"containers":[{"name":"main","image":"web:2"}]}}`)
		after := p.waitFor("restarted", synced)
		main := after.Status.ContainerStatuses[0]
		require.Equal(t, "web:2", main.Image)
		require.EqualValues(t, 1, main.RestartCount)
		require.NotEqual(t, before.Status.ContainerStatuses[0].ContainerID, main.ContainerID)
		require.NotEqual(t, before.Status.ContainerStatuses[0].ImageID, main.ImageID)
		require.Equal(t, before.Status.ContainerStatuses[0].ContainerID, main.LastTerminationState.Terminated.ContainerID)
		require.Empty(t, cmp.Diff(before.Status.ContainerStatuses[1], after.Status.ContainerStatuses[1]),
			"the other container runs on")
		require.False(t, ready(after))
		require.Empty(t, cmp.Diff(condition(before, corev1.ContainersReady), condition(after, corev1.ContainersReady)))

		p.setConditions(gate, "True")
		p.waitFor("ready again", ready)

		p.setConditions(gate, "False")
		down := p.waitFor("not ready by the gate alone", func(pod *corev1.Pod) bool { return !ready(pod) })
		require.Equal(t, "ReadinessGatesNotReady", condition(down, corev1.PodReady).Reason)

		p.delete()
		want := map[string]int{
			"kwok patch status":  5, // start, ready, restart, ready, not ready
			"admin patch status": 4,
			"admin patch ":       1,
		}
		// What a write did is seen before its line is in the log.
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			got := p.writes()
			maps.DeleteFunc(got, func(key string, _ int) bool { return want[key] == 0 })
			require.Empty(c, cmp.Diff(want, got))
		}, deadline, poll)
	})

	t.Run("an image that cannot be pulled never starts until it is corrected", func(t *testing.T) {
		t.Parallel()
		p := newPod(t, cluster, func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "web:non-exist" })
		stuck := p.waitFor("observed", synced)
		require.Equal(t, "ImagePullBackOff", stuck.Status.ContainerStatuses[0].State.Waiting.Reason)
		require.Empty(t, stuck.Status.ContainerStatuses[0].ContainerID)
		require.False(t, ready(stuck))

		p.patch(`{"spec":{"containers":[{"name":"main","image":"web:1"}]}}`)
		good := p.waitFor("ready", ready)
		require.EqualValues(t, 0, good.Status.ContainerStatuses[0].RestartCount, "it had never run")

		p.patch(`{"spec":{"containers":[{"name":"main","image":"web:non-exist"}]}}`)
		p.waitFor("not ready", func(pod *corev1.Pod) bool { return synced(pod) && !ready(pod) })
		p.patch(`{"spec":{"containers":[{"name":"main","image":"web:1"}]}}`)
		again := p.waitFor("ready again", func(pod *corev1.Pod) bool { return synced(pod) && ready(pod) })
		require.EqualValues(t, 1, again.Status.ContainerStatuses[0].RestartCount)
	})

	t.Run("two tags of one digest have one image ID and still restart", func(t *testing.T) {
		t.Parallel()
		digest := "@sha256:" + strings.Repeat("0", 64)
		p := newPod(t, cluster, func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "web:1" + digest })
		before := p.waitFor("ready", ready)
		p.patch(`{"spec":{"containers":[{"name":"main","image":"web:2` + digest + `"}]}}`)
		after := p.waitFor("restarted", synced)
		require.Equal(t, before.Status.ContainerStatuses[0].ImageID, after.Status.ContainerStatuses[0].ImageID)
		require.NotEqual(t, before.Status.ContainerStatuses[0].ContainerID, after.Status.ContainerStatuses[0].ContainerID)
	})

	t.Run("init containers complete once and sidecars restart with their image", func(t *testing.T) {
		t.Parallel()
		always := corev1.ContainerRestartPolicyAlways
		p := newPod(t, cluster, func(pod *corev1.Pod) {
			pod.Spec.InitContainers = []corev1.Container{
				{Name: "setup", Image: "setup:1"}, {Name: "mesh", Image: "mesh:1", RestartPolicy: &always},
			}
		})
		before := p.waitFor("ready", ready)
		require.Equal(t, "Completed", before.Status.InitContainerStatuses[0].State.Terminated.Reason)
		require.NotNil(t, before.Status.InitContainerStatuses[1].State.Running)

		p.patch(`{"spec":{"initContainers":[{"name":"setup","image":"setup:2"},{"name":"mesh","image":"mesh:2"}]}}`)
		after := p.waitFor("observed", synced)
		require.Empty(t, cmp.Diff(before.Status.InitContainerStatuses[0], after.Status.InitContainerStatuses[0]))
		require.Equal(t, "mesh:2", after.Status.InitContainerStatuses[1].Image)
		require.EqualValues(t, 1, after.Status.InitContainerStatuses[1].RestartCount)
		require.Empty(t, cmp.Diff(before.Status.ContainerStatuses, after.Status.ContainerStatuses))
	})

	t.Run("an init container that cannot be pulled holds up the Pod", func(t *testing.T) {
		t.Parallel()
		p := newPod(t, cluster, func(pod *corev1.Pod) {
			pod.Spec.InitContainers = []corev1.Container{{Name: "setup", Image: "setup:non-exist"}}
		})
		stuck := p.waitFor("observed", synced)
		require.Equal(t, corev1.PodPending, stuck.Status.Phase)
		require.Equal(t, corev1.ConditionFalse, condition(stuck, corev1.PodInitialized).Status)
		require.Equal(t, "PodInitializing", stuck.Status.ContainerStatuses[0].State.Waiting.Reason)
		p.patch(`{"spec":{"initContainers":[{"name":"setup","image":"setup:1"}]}}`)
		p.waitFor("ready", ready)
	})

	t.Run("resources are applied in place, with a restart only by policy", func(t *testing.T) {
		t.Parallel()
		p := newPod(t, cluster, func(pod *corev1.Pod) {
			for i := range pod.Spec.Containers {
				pod.Spec.Containers[i].Resources.Requests = corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi"),
				}
			}
			pod.Spec.Containers[1].ResizePolicy = []corev1.ContainerResizePolicy{
				{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer},
			}
		})
		before := p.waitFor("ready", ready)
		p.patch(`{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"250m"}}},`+
			`{"name":"side","resources":{"requests":{"memory":"128Mi"}}}]}}`, "resize")
		after := p.waitFor("observed", synced)
		main, side := after.Status.ContainerStatuses[0], after.Status.ContainerStatuses[1]
		require.Equal(t, "250m", main.Resources.Requests.Cpu().String())
		require.Equal(t, "250m", main.AllocatedResources.Cpu().String())
		require.Equal(t, before.Status.ContainerStatuses[0].ContainerID, main.ContainerID)
		require.Equal(t, "128Mi", side.Resources.Requests.Memory().String())
		require.NotEqual(t, before.Status.ContainerStatuses[1].ContainerID, side.ContainerID)
		require.EqualValues(t, 1, side.RestartCount)
	})

	t.Run("a deleted Pod with a finalizer stops and stays until the finalizer goes", func(t *testing.T) {
		t.Parallel()
		p := newPod(t, cluster, func(pod *corev1.Pod) { pod.Finalizers = []string{"example.com/hold"} })
		p.waitFor("ready", ready)
		require.NoError(t, p.pods().Delete(t.Context(), p.name, metav1.DeleteOptions{}))
		stopped := p.waitFor("stopped", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodSucceeded })
		require.False(t, ready(stopped))
		require.Equal(t, "Completed", stopped.Status.ContainerStatuses[0].State.Terminated.Reason)
		p.patch(`{"metadata":{"finalizers":null}}`)
		p.waitGone()
	})

	t.Run("the status of a Pod has the fields that a real kubelet writes", func(t *testing.T) {
		t.Parallel()
		namespace := testcluster.Namespace(t, cluster, nil)
		c, err := ctrlclient.New(cluster.RESTConfig(), ctrlclient.Options{})
		require.NoError(t, err)
		stops, err := podstatus.Play(t.Context(), c, namespace, "kuperator.test/web:1", "kuperator.test/web:2",
			"kuperator.test/web:non-exist")
		require.NoError(t, err)
		want := podstatus.Parse(podstatus.Real)
		require.NotEmpty(t, want)
		for i := range want {
			want[i].Fields = slices.DeleteFunc(want[i].Fields, notSimulated.MatchString)
		}
		require.Empty(t, cmp.Diff(want, stops))
	})

	t.Run("a service account may do what a role says and nothing else", func(t *testing.T) {
		t.Parallel()
		namespace := testcluster.Namespace(t, cluster, nil)
		path, err := cluster.ServiceAccountKubeconfig(t.Context(), namespace, "default")
		require.NoError(t, err)
		config, err := clientcmd.BuildConfigFromFlags("", path)
		require.NoError(t, err)
		config.UserAgent = "the-account"
		account, err := kubernetes.NewForConfig(config)
		require.NoError(t, err)
		create := func(name string) error {
			object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
			_, err := account.CoreV1().ConfigMaps(namespace).Create(t.Context(), object, metav1.CreateOptions{})
			return err
		}
		require.True(t, apierrors.IsForbidden(create("too-early")))

		_, err = cluster.Kubectl(t.Context(), "-n", namespace, "create", "role", "writer", "--verb=create",
			"--resource=configmaps")
		require.NoError(t, err)
		_, err = cluster.Kubectl(t.Context(), "-n", namespace, "create", "rolebinding", "writer", "--role=writer",
			"--serviceaccount="+namespace+":default")
		require.NoError(t, err)
		require.Eventually(t, func() bool { return create("allowed") == nil }, deadline, poll)

		written := auditEvents(t, cluster, func(e *auditv1.Event) bool {
			return e.ObjectRef.Namespace == namespace && e.ObjectRef.Name == "allowed" && e.ResponseStatus.Code == 201
		})
		require.Len(t, written, 1)
		require.Equal(t, "system:serviceaccount:"+namespace+":default", written[0].User.Username)
		require.Equal(t, "the-account", written[0].UserAgent)
		require.Nil(t, written[0].RequestObject)
	})

	t.Run("a restricted namespace refuses a privileged Pod", func(t *testing.T) {
		t.Parallel()
		namespace := testcluster.Namespace(t, cluster, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
		yes := true
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "root"}, Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "main", Image: "web:1", SecurityContext: &corev1.SecurityContext{Privileged: &yes}},
		}}}
		_, err := client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		require.True(t, apierrors.IsForbidden(err), "%v", err)
		require.ErrorContains(t, err, "PodSecurity")
	})
}

func TestAnAPIServerWithoutControllersOrNodes(t *testing.T) {
	t.Parallel()
	cluster := testcluster.Start(t, localkube.Config{Name: "bare"})
	client := clientFor(t, cluster)
	require.Empty(t, cluster.AuditLog())

	namespace := testcluster.Namespace(t, cluster, nil)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "web:1"}}}}
	_, err := client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err, "Pods need no service account where nobody makes one")

	before := cluster.Processes()["kube-apiserver"]
	require.NoError(t, cluster.RestartAPIServer(t.Context()))
	require.NotEqual(t, before, cluster.Processes()["kube-apiserver"])
	_, err = client.CoreV1().Pods(namespace).Get(t.Context(), "p", metav1.GetOptions{})
	require.NoError(t, err, "the data outlives the API server")
}

func TestTwoClustersAtOnceLeaveNothing(t *testing.T) {
	t.Parallel()
	clusters := make([]*localkube.Cluster, 2)
	var wg sync.WaitGroup
	for i := range clusters {
		wg.Go(func() {
			cluster, err := localkube.Start(t.Context(), localkube.Config{
				Name: fmt.Sprintf("twin-%d", i), Nodes: i + 1, WithNodes: true, WithScheduler: i == 0, Detached: i == 1,
			})
			if err != nil {
				t.Error(err)
				return
			}
			clusters[i] = cluster
		})
	}
	wg.Wait()
	t.Cleanup(func() {
		for _, cluster := range clusters {
			if cluster != nil {
				require.NoError(t, cluster.Stop())
			}
		}
	})
	require.False(t, t.Failed())

	for i, cluster := range clusters {
		nodes, err := clientFor(t, cluster).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Len(t, nodes.Items, i+1)
		require.Empty(t, nodes.Items[0].Spec.Taints)
	}

	attached, err := localkube.Attach(clusters[1].Dir)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(clusters[1].Processes(), attached.Processes()))
	_, err = attached.Kubectl(t.Context(), "get", "nodes")
	require.NoError(t, err)

	for _, cluster := range []*localkube.Cluster{clusters[0], attached} {
		pids := cluster.Processes()
		server, err := url.Parse(cluster.RESTConfig().Host)
		require.NoError(t, err)
		require.NoError(t, cluster.Stop())
		for name, pid := range pids {
			// Of a detached cluster this process is the parent nevertheless, and may not have collected it yet.
			require.Eventually(t, func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }, time.Minute,
				10*time.Millisecond, "%s is still there", name)
		}
		require.NoDirExists(t, cluster.Dir)
		listener, err := net.Listen("tcp", server.Host)
		require.NoError(t, err, "the port is free again")
		require.NoError(t, listener.Close())
		require.NoError(t, cluster.Stop(), "stopping twice is fine")
	}
	_, err = localkube.Attach(attached.Dir)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestAComponentThatDiesAtStartIsExplainedAndCleanedUp(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new")
	_, err := localkube.Start(t.Context(), localkube.Config{Dir: dir, APIServerArgs: []string{"--no-such-flag"}})
	require.ErrorContains(t, err, "kube-apiserver ended")
	require.ErrorContains(t, err, "unknown flag: --no-such-flag")
	require.NoDirExists(t, dir)
}

func TestAClusterKeepsOutOfAFolderThatIsInUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	precious := filepath.Join(dir, "precious")
	require.NoError(t, os.WriteFile(precious, nil, 0o600))
	_, err := localkube.Start(t.Context(), localkube.Config{Dir: dir})
	require.ErrorContains(t, err, "not empty")
	require.FileExists(t, precious)
}

func TestAClusterDiesWithItsStarter(t *testing.T) {
	t.Parallel()
	testcluster.Assets(t)
	dir := t.TempDir()
	starter := exec.Command(os.Args[0])
	starter.Env = append(os.Environ(), victim+"="+dir)
	out, err := starter.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, starter.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "up\n", line)
	orphan, err := localkube.Attach(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, orphan.Stop()) })
	require.NotContains(t, slices.Collect(maps.Values(orphan.Processes())), 0)

	require.NoError(t, starter.Process.Kill())
	require.Error(t, starter.Wait())
	require.Eventually(t, func() bool {
		return maps.Equal(orphan.Processes(), map[string]int{"etcd": 0, "kube-apiserver": 0})
	}, deadline, poll)
}

func clientFor(t *testing.T, cluster *localkube.Cluster) kubernetes.Interface {
	client, err := kubernetes.NewForConfig(cluster.RESTConfig())
	require.NoError(t, err)
	return client
}

// auditEvents returns the log's events about objects that match.
func auditEvents(t *testing.T, cluster *localkube.Cluster, match func(*auditv1.Event) bool) []auditv1.Event {
	file, err := os.Open(cluster.AuditLog())
	require.NoError(t, err)
	defer file.Close()
	var found []auditv1.Event
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event auditv1.Event
		if json.Unmarshal(lines.Bytes(), &event) != nil {
			continue // the last line may be in the writing
		}
		if event.ObjectRef != nil && match(&event) {
			found = append(found, event)
		}
	}
	require.NoError(t, lines.Err())
	return found
}

// livePod is a Pod "p" in its own namespace with the containers main and side.
type livePod struct {
	t         *testing.T
	cluster   *localkube.Cluster
	client    kubernetes.Interface
	namespace string
	name      string
}

func newPod(t *testing.T, cluster *localkube.Cluster, change func(*corev1.Pod)) *livePod {
	p := &livePod{t: t, cluster: cluster, client: clientFor(t, cluster),
		namespace: testcluster.Namespace(t, cluster, nil), name: "p"}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.name}, Spec: corev1.PodSpec{Containers: []corev1.Container{
		{Name: "main", Image: "web:1"}, {Name: "side", Image: "side:1"},
	}}}
	change(pod)
	_, err := p.pods().Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	return p
}

func (p *livePod) pods() interface {
	Create(context.Context, *corev1.Pod, metav1.CreateOptions) (*corev1.Pod, error)
	Get(context.Context, string, metav1.GetOptions) (*corev1.Pod, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
	Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*corev1.Pod, error)
} {
	return p.client.CoreV1().Pods(p.namespace)
}

func (p *livePod) waitFor(what string, holds func(*corev1.Pod) bool) *corev1.Pod {
	p.t.Helper()
	var pod *corev1.Pod
	for end := time.Now().Add(deadline); ; time.Sleep(poll) {
		var err error
		pod, err = p.pods().Get(p.t.Context(), p.name, metav1.GetOptions{})
		require.NoError(p.t, err)
		if holds(pod) {
			return pod
		}
		if time.Now().After(end) {
			status, _ := json.MarshalIndent(pod.Status, "", " ") // only to explain
			require.FailNow(p.t, "the Pod is never "+what, string(status))
		}
	}
}

func (p *livePod) waitGone() {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		_, err := p.pods().Get(p.t.Context(), p.name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, deadline, poll)
}

func (p *livePod) delete() {
	require.NoError(p.t, p.pods().Delete(p.t.Context(), p.name, metav1.DeleteOptions{}))
	p.waitGone()
}

func (p *livePod) patch(body string, subresource ...string) {
	p.t.Helper()
	_, err := p.pods().Patch(p.t.Context(), p.name, types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{},
		subresource...)
	require.NoError(p.t, err)
}

// setConditions writes conditions, given as type, status, type, status..., at once.
func (p *livePod) setConditions(typesAndStatuses ...string) {
	p.t.Helper()
	var conditions []string
	for pair := range slices.Chunk(typesAndStatuses, 2) {
		conditions = append(conditions, fmt.Sprintf(`{"type":%q,"status":%q}`, pair[0], pair[1]))
	}
	p.patch(`{"status":{"conditions":[`+strings.Join(conditions, ",")+`]}}`, "status")
}

// writes counts the successful writes of the Pod as "user verb subresource".
func (p *livePod) writes() map[string]int {
	counts := map[string]int{}
	for _, event := range auditEvents(p.t, p.cluster, func(e *auditv1.Event) bool {
		return e.ObjectRef.Namespace == p.namespace && e.ObjectRef.Resource == "pods" && e.ResponseStatus.Code < 300
	}) {
		counts[strings.Join([]string{event.User.Username, event.Verb, event.ObjectRef.Subresource}, " ")]++
	}
	return counts
}

func condition(pod *corev1.Pod, conditionType corev1.PodConditionType) corev1.PodCondition {
	for _, c := range pod.Status.Conditions {
		if c.Type == conditionType {
			return c
		}
	}
	return corev1.PodCondition{}
}

func ready(pod *corev1.Pod) bool {
	return condition(pod, corev1.PodReady).Status == corev1.ConditionTrue
}

func started(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning
}

// synced reports whether the status is about the present spec.
func synced(pod *corev1.Pod) bool {
	return pod.Status.ObservedGeneration == pod.Generation && len(pod.Status.ContainerStatuses) > 0
}
