package localkube

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kusionstack.io/kuperator/internal/testkit/localkube/binaries"
)

const probeTimeout = 10 * time.Second // of one question; it is asked again

func (c *Cluster) waitForEtcd(ctx context.Context, port int) error {
	url := fmt.Sprintf("http://%s:%d/health", loopback, port)
	client := &http.Client{Timeout: probeTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
	return waitFor(ctx, "etcd", c.lifeline(binaries.Etcd), func(ctx context.Context) error {
		return probe(ctx, client, url)
	})
}

func (c *Cluster) waitForAPIServer(ctx context.Context) error {
	config := c.RESTConfig()
	config.Timeout = probeTimeout
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	alive := c.lifeline(binaries.Etcd, binaries.KubeAPIServer)
	return waitFor(ctx, "the API server", alive, func(ctx context.Context) error {
		return probe(ctx, client, c.state.Server+"/readyz")
	})
}

func probe(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusOK {
		return nil
	}
	body, _ := io.ReadAll(io.LimitReader(response.Body, 4096)) // only to explain
	return fmt.Errorf("%s answers %s: %s", url, response.Status, body)
}

// waitForControllers waits for the two objects without which no Pod of the
// default namespace can be admitted and started.
func (c *Cluster) waitForControllers(ctx context.Context, client kubernetes.Interface) error {
	return waitFor(ctx, "the controller manager", c.lifeline(), func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		if err != nil {
			return err
		}
		_, err = client.CoreV1().ConfigMaps("default").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return err
	})
}

func createNodes(ctx context.Context, client kubernetes.Interface, n int, dualStack bool) error {
	for i := range n {
		name := fmt.Sprintf("node-%d", i)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: name,
			Labels: map[string]string{
				corev1.LabelHostname:   name,
				corev1.LabelOSStable:   "linux",
				corev1.LabelArchStable: "amd64",
			},
		}}
		if dualStack {
			node.Spec.PodCIDRs = podCIDRs(i)
			node.Spec.PodCIDR = node.Spec.PodCIDRs[0]
		}
		_, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating node %s: %w", name, err)
		}
	}
	return nil
}

// podCIDRs are where the addresses of a node's Pods come from, IPv4 first. They are
// set when the node is made, in place of the controller manager's node IPAM
// controller, so that no Pod is quicker than they are.
func podCIDRs(node int) []string {
	return []string{fmt.Sprintf("10.%d.%d.0/24", 128+node/256%64, node%256), fmt.Sprintf("fd00:10:244:%x::/64", node+1)}
}

// waitForNodes waits until every node is Ready and may be scheduled to. Admission
// taints a new node as not ready; the node lifecycle controller takes that away,
// or this function does where there is none.
func (c *Cluster) waitForNodes(ctx context.Context, client kubernetes.Interface, controllers bool) error {
	return waitFor(ctx, "the nodes", c.lifeline(), func(ctx context.Context) error {
		nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		waiting := map[string]string{}
		for i := range nodes.Items {
			node := &nodes.Items[i]
			switch {
			case !nodeReady(node):
				waiting[node.Name] = "not Ready"
			case len(node.Spec.Taints) > 0:
				waiting[node.Name] = "tainted " + node.Spec.Taints[0].Key
				if controllers {
					continue
				}
				node.Spec.Taints = nil
				if _, err := client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
					return err
				}
			}
		}
		return missing(waiting)
	})
}

func nodeReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}
