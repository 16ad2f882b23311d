package realnode

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kusionstack.io/kuperator/internal/testkit/child"
	"kusionstack.io/kuperator/internal/testkit/localkube"
)

const (
	readyTimeout = 2 * time.Minute
	pollInterval = 100 * time.Millisecond
	killGrace    = 10 * time.Second
	logTailLines = 25
)

//go:embed node.sh
var nodeScript string

// Node is a running node. It ends with Stop, or with the process that Main
// started.
type Node struct {
	// Name is the Node object's.
	Name string

	dir     string
	process child.Process
}

// Start starts number n of the cluster's nodes, 1 to 200, with these images, and
// returns when the Node is Ready. The kubelet is the binary at the path kubelet,
// the program of the image that holds a Pod's namespaces the one at pause, which is
// called with the argument "pause". After an error nothing is left but the folder.
func Start(
	ctx context.Context, cluster *localkube.Cluster, n int, kubelet, pause string, images ...Image,
) (*Node, error) {
	run := os.Getenv(folderVariable)
	if run == "" {
		return nil, errors.New("nodes run only inside: call realnode.Main from TestMain")
	}
	dir, err := os.MkdirTemp(run, "n") // short: it has sockets, whose paths may have 108 characters
	if err != nil {
		return nil, err
	}
	node := &Node{Name: fmt.Sprintf("real-%d", n), dir: dir}
	if err := node.prepare(cluster, n, filepath.Base(run), kubelet,
		append(images, Image{Name: pauseImage, Program: pause, Args: []string{"pause"}})); err != nil {
		return nil, fmt.Errorf("preparing node %s: %w", node.Name, err)
	}
	if out, err := exec.CommandContext(ctx, "ip", "address", "replace", address(n)+"/32", "dev",
		bridge).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("giving node %s its address: %w: %s", node.Name, err, out)
	}
	node.process = child.Process{Name: node.Name, Log: node.in("node.log")}
	err = node.process.Start("unshare", []string{
		"--mount", "--propagation", "private", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc",
		"sh", node.in("node.sh"), node.Name, node.dir,
		node.in("kubelet"), "--config=" + node.in("kubelet.json"), "--kubeconfig=" + node.in("kubeconfig"),
		"--hostname-override=" + node.Name, "--node-ip=" + address(n), "--root-dir=" + node.in("root"),
		"--cert-dir=" + node.in("pki"), "--v=2",
	}, os.Environ(), false)
	if err != nil {
		return nil, err
	}
	if err := node.waitReady(ctx, cluster); err != nil {
		return nil, errors.Join(err, node.Stop())
	}
	return node, nil
}

// address is the node's own, on the bridge.
func address(n int) string { return fmt.Sprintf("10.88.0.%d", n+1) }

func (n *Node) in(name string) string { return filepath.Join(n.dir, name) }

// prepare writes what the node reads.
func (n *Node) prepare(cluster *localkube.Cluster, number int, cgroup, kubelet string, images []Image) error {
	for _, dir := range []string{"images", "root", "cni", "logs", "volume-plugins"} {
		if err := os.MkdirAll(n.in(dir), 0o755); err != nil {
			return err
		}
	}
	if err := makeCgroup(cgroup + "/" + n.Name); err != nil {
		return fmt.Errorf("making its cgroup: %w", err)
	}
	plugins, err := cniPlugins()
	if err != nil {
		return err
	}
	archive, err := os.Create(n.in("images/all.tar"))
	if err != nil {
		return err
	}
	if err := errors.Join(writeImages(archive, images...), archive.Close()); err != nil {
		return err
	}
	for i, image := range images {
		if image.Archive == "" {
			continue
		}
		content, err := os.ReadFile(image.Archive) // the node does not see every folder
		if err == nil {
			err = os.WriteFile(n.in(fmt.Sprintf("images/%d.tar", i)), content, 0o600)
		}
		if err != nil {
			return fmt.Errorf("bringing images to the node: %w", err)
		}
	}
	program, err := os.ReadFile(kubelet) // its own folder may be below /var, which the node does not see
	if err != nil {
		return err
	}
	credentials, err := cluster.NodeKubeconfig(n.Name)
	if err != nil {
		return err
	}
	network, err := json.Marshal(networkConfig(number))
	if err != nil {
		return err
	}
	config, err := json.Marshal(n.kubeletConfig(number, cgroup))
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"kubelet": program, "kubeconfig": credentials, "kubelet.json": config, "cni/10-nodes.conflist": network,
		"containerd.toml": []byte(n.containerdConfig(plugins)), "node.sh": []byte(nodeScript),
	} {
		if err := os.WriteFile(n.in(name), content, 0o700); err != nil {
			return err
		}
	}
	return nil
}

// networkConfig gives the node's Pods addresses of their own on the one bridge.
func networkConfig(number int) any {
	part := func(last int) string { return fmt.Sprintf("10.88.%d.%d", number, last) }
	return map[string]any{"cniVersion": "0.4.0", "name": "nodes", "plugins": []any{map[string]any{
		"type": "bridge", "bridge": bridge, "isGateway": false, "ipMasq": false,
		"ipam": map[string]any{
			"type": "host-local",
			"ranges": []any{[]any{map[string]any{"subnet": subnet, "rangeStart": part(1), "rangeEnd": part(254),
				"gateway": gateway}}},
			"routes":  []any{map[string]any{"dst": "0.0.0.0/0"}},
			"dataDir": "/run/addresses",
		},
	}}}
}

func (n *Node) containerdConfig(plugins string) string {
	return fmt.Sprintf(`version = 2
root = %q
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = %q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  restrict_oom_score_adj = true # a sandbox may lack CAP_SYS_RESOURCE
  disable_apparmor = true
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
  disable_tcp_service = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = %q
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native" # works on any file system; the images are small
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
`, n.in("containerd"), n.in("containerd.sock"), pauseImage, plugins, n.in("cni"))
}

func (n *Node) kubeletConfig(number int, cgroup string) any {
	never := "0%"
	return map[string]any{
		"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
		"containerRuntimeEndpoint": "unix://" + n.in("containerd.sock"),
		"failCgroupV1":             false,
		"cgroupDriver":             "cgroupfs",
		"cgroupRoot":               "/" + cgroup + "/" + n.Name,
		"enforceNodeAllocatable":   []string{},
		"address":                  address(number),
		"healthzPort":              0,
		"readOnlyPort":             0,
		// Only this run can reach the address.
		"authentication": map[string]any{"anonymous": map[string]any{"enabled": true},
			"webhook": map[string]any{"enabled": false}},
		"authorization": map[string]any{"mode": "AlwaysAllow"},
		"evictionHard": map[string]string{"memory.available": never, "nodefs.available": never,
			"nodefs.inodesFree": never, "imagefs.available": never, "imagefs.inodesFree": never},
		"imageGCHighThresholdPercent":   100,
		"localStorageCapacityIsolation": false,
		"makeIPTablesUtilChains":        false,
		"failSwapOn":                    false,
		"oomScoreAdj":                   0,
		"resolvConf":                    "",
		"podLogsDir":                    n.in("logs"),
		"volumePluginDir":               n.in("volume-plugins"),
		"maxPods":                       100,
		"kubeAPIQPS":                    100,
		"kubeAPIBurst":                  200,
		"crashLoopBackOff":              map[string]any{"maxContainerRestartPeriod": "2s"},
	}
}

// waitReady waits until the Node is Ready and takes Pods.
func (n *Node) waitReady(ctx context.Context, cluster *localkube.Cluster) error {
	client, err := kubernetes.NewForConfig(cluster.RESTConfig())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		object, err := client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err == nil {
			if err = takesPods(object); err == nil {
				return nil
			}
		} else if !apierrors.IsNotFound(err) {
			return fmt.Errorf("reading node %s: %w", n.Name, err)
		}
		if !n.process.Running() {
			return fmt.Errorf("node %s ended; its logs:\n%s", n.Name, n.LogTail())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for node %s to be Ready: %w; its logs:\n%s", n.Name, err, n.LogTail())
		case <-time.After(pollInterval):
		}
	}
}

func takesPods(object *corev1.Node) error {
	for _, c := range object.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return fmt.Errorf("it says %s: %s", c.Reason, c.Message)
		}
	}
	if len(object.Spec.Taints) > 0 {
		return fmt.Errorf("it has the taint %s", object.Spec.Taints[0].Key)
	}
	if len(object.Status.Conditions) == 0 {
		return errors.New("it has said nothing yet")
	}
	return nil
}

// Stop ends the node as a power cut does: kubelet, containerd and all containers
// at once. Stopping a stopped node does nothing.
func (n *Node) Stop() error { return n.process.End(syscall.SIGKILL, killGrace) }

// LogTail returns the last lines of the node's logs.
func (n *Node) LogTail() string {
	var all strings.Builder
	for _, name := range []string{"node.log", "containerd.log", "kubelet.log"} {
		fmt.Fprintf(&all, "%s:\n%s\n", name, child.LogTail(n.in(name), logTailLines))
	}
	return all.String()
}
