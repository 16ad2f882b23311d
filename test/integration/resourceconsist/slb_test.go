package resourceconsist_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"kusionstack.io/kuperator/api/podops"
	api "kusionstack.io/kuperator/api/resourceconsist"
	"kusionstack.io/kuperator/api/resourceconsist/setup"
	slb "kusionstack.io/kuperator/internal/resourceconsist/alibabacloudslb"
	"kusionstack.io/kuperator/internal/resourceconsist/builtin"
	"kusionstack.io/kuperator/internal/testkit/alibabacloud"
)

// slbGroup and slbBalancer are what the Services of these tests use.
const (
	slbGroup    = "rsp-web"
	slbBalancer = "lb-web"
)

// TestAlibabaCloudSLB runs both halves of the adapter against the stand-in.
func TestAlibabaCloudSLB(t *testing.T) {
	w := start(t)
	cloud := alibabacloud.New("test-id", "test-secret", nil)
	t.Cleanup(cloud.Close)
	cloud.AddGroup(slbGroup)
	cloud.SetBalancer(slbBalancer)
	startSLB(t, w, cloud)
	t.Run("owning", func(t *testing.T) { slbOwning(t, w.shop(t), cloud) })
	t.Run("observing", func(t *testing.T) { slbObserving(t, w.shop(t), cloud) })
}

func startSLB(t *testing.T, w *world, cloud *alibabacloud.Cloud) {
	t.Helper()
	groups := filepath.Join(t.TempDir(), "groups.yaml")
	require.NoError(t, os.WriteFile(groups,
		[]byte("vpcID: vpc-test\nserverGroups: [{name: web, id: "+slbGroup+", namespaces: ['*']}]\n"), 0o600))
	c := slb.DefaultConfig()
	c.Region, c.ServerGroupsFile, c.ECSEndpoint, c.HTTP, c.QPS, c.Burst = "cn-test", groups, cloud.Host(),
		cloud.Client(), 100, 100
	c.Getenv = func(name string) string {
		return map[string]string{slb.EnvKeyID: "test-id", slb.EnvKeySecret: "test-secret",
			slb.EnvEndpoint: cloud.Host()}[name]
	}
	observing, owning, err := slb.New(c)
	require.NoError(t, err)
	skip := true
	mgr, err := ctrl.NewManager(w.config, ctrl.Options{
		Cache: builtin.CacheOptions(), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: &skip, MaxConcurrentReconciles: 4},
	})
	require.NoError(t, err)
	require.NoError(t, setup.AddToManager(mgr, api.Options{DrainTime: drainTime},
		setup.BackendOf(observing, slb.CallOptions()), setup.BackendOf(owning, slb.CallOptions())))
	run(t, func(ctx context.Context) {
		if err := mgr.Start(ctx); err != nil {
			t.Errorf("the manager ended: %v", err)
		}
	})
	require.True(t, mgr.GetCache().WaitForCacheSync(t.Context()))
}

// interfaces gives the Pods' addresses network interfaces, as Terway does, once they have addresses.
func (s shop) interfaces(t *testing.T, cloud *alibabacloud.Cloud, pods ...string) {
	t.Helper()
	for _, name := range pods {
		var address string
		s.eventually(t, "Pod "+name+" has an address",
			func() bool { address = s.pod(t, name).Status.PodIP; return address != "" })
		cloud.AddInterface("eni-"+strings.ReplaceAll(address, ".", "-"), address)
	}
}

// weight is that of the Pod in the group, -1 if it is not there.
func (s shop) weight(t *testing.T, cloud *alibabacloud.Cloud, pod string) int {
	t.Helper()
	address := s.pod(t, pod).Status.PodIP
	servers := cloud.Servers(slbGroup)
	i := slices.IndexFunc(servers, func(x alibabacloud.Server) bool { return x.ServerIP == address && x.Port == 8080 })
	if i < 0 {
		return -1
	}
	return servers[i].Weight
}

func slbOwning(t *testing.T, s shop, cloud *alibabacloud.Cloud) {
	const count = 10
	var pods []string
	for i := range count {
		pods = append(pods, "web-"+strconv.Itoa(i))
		s.createPod(t, pods[i])
	}
	s.interfaces(t, cloud, pods...)
	s.createService(t, "web", func(service *corev1.Service) {
		service.Annotations = map[string]string{slb.ServerGroupsAnnotation: "web:8080", slb.WeightAnnotation: "60"}
	})
	for _, pod := range pods {
		s.serving(t, pod, "web")
		require.Equal(t, 60, s.weight(t, cloud, pod))
	}

	before := cloud.Calls("")
	for _, pod := range pods {
		s.begin(t, pod)
	}
	for _, pod := range pods {
		s.allowed(t, pod)
		require.Equal(t, 0, s.weight(t, cloud, pod), "no request is sent to a Pod that is operated")
	}
	out := cloud.Calls("") - before
	for _, pod := range pods {
		s.finish(t, pod)
	}
	for _, pod := range pods {
		s.serving(t, pod, "web")
		require.Equal(t, 60, s.weight(t, cloud, pod))
	}
	t.Logf("%d Pods: %d calls to take them out, %d to bring them back: %.1f for each Pod's operation",
		count, out, cloud.Calls("")-before-out, float64(cloud.Calls("")-before)/count)

	// A provider that refuses for a while delays, and no Pod is let go meanwhile.
	cloud.Fail("*", alibabacloud.Throttled(3))
	cloud.Fail("*", alibabacloud.Fault{Times: 2, Status: http.StatusInternalServerError, Code: "InternalError",
		Message: "try later"})
	s.begin(t, pods[0])
	s.allowed(t, pods[0])
	require.Equal(t, 0, s.weight(t, cloud, pods[0]))
	s.finish(t, pods[0])
	s.serving(t, pods[0], "web")
	require.Positive(t, cloud.Refusals("Throttling.User"))

	// A Pod that is deleted leaves the group altogether, and only after it has left traffic.
	address := s.pod(t, pods[1]).Status.PodIP
	s.delete(t, pods[1])
	s.eventually(t, "the server of Pod "+pods[1]+" is removed", func() bool {
		return s.pod(t, pods[1]) == nil && !slices.ContainsFunc(cloud.Servers(slbGroup),
			func(x alibabacloud.Server) bool { return x.ServerIP == address })
	})
	require.Len(t, cloud.Servers(slbGroup), count-1)

	// A Service that is deleted takes all its servers with it.
	require.NoError(t, s.clientset.CoreV1().Services(s.namespace).Delete(t.Context(), "web", metav1.DeleteOptions{}))
	s.eventually(t, "the group is empty", func() bool { return len(cloud.Servers(slbGroup)) == 0 })
}

// delete asks for the Pod's deletion as the graceful deletion does: by an operation.
func (s shop) delete(t *testing.T, pod string) {
	t.Helper()
	s.begin(t, pod)
	s.allowed(t, pod)
	require.NoError(t, s.clientset.CoreV1().Pods(s.namespace).Delete(t.Context(), pod, metav1.DeleteOptions{}))
}

// playCloudController keeps the load balancer's backends equal to the Pods that are Ready, as the cloud controller
// manager does.
func (s shop) playCloudController(ctx context.Context, cloud *alibabacloud.Cloud) {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		pods, err := s.clientset.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		var lines []alibabacloud.Health
		for i := range pods.Items {
			if pod := &pods.Items[i]; podops.Read(pod).Ready && pod.Status.PodIP != "" {
				lines = append(lines, alibabacloud.Health{ListenerPort: 80, ServerIP: pod.Status.PodIP, Status: "normal"},
					alibabacloud.Health{ListenerPort: 443, ServerIP: pod.Status.PodIP, Status: "abnormal"})
			}
		}
		cloud.SetBalancer(slbBalancer, lines...)
	}
}

func slbObserving(t *testing.T, s shop, cloud *alibabacloud.Cloud) {
	listed := func(pod string) bool {
		address := s.pod(t, pod).Status.PodIP
		return slices.ContainsFunc(cloud.Balancer(slbBalancer),
			func(h alibabacloud.Health) bool { return h.ServerIP == address })
	}
	s.createPod(t, "web-0")
	s.createPod(t, "web-1")
	s.createService(t, "web", func(service *corev1.Service) { service.Spec.Type = corev1.ServiceTypeLoadBalancer })
	s.eventually(t, "the Pod is announced", func() bool {
		expected, err := podops.ExpectedFinalizers(s.pod(t, "web-0").Annotations)
		return err == nil && len(expected) == 1
	})
	require.Empty(t, podops.ProtectionFinalizers(s.pod(t, "web-0").Finalizers),
		"it joins nothing while there is no load balancer")
	s.patchService(t, "web", `{"metadata":{"labels":{"`+slb.LoadBalancerIDLabel+`":"`+slbBalancer+`"}}}`)
	stop := run(t, func(ctx context.Context) { s.playCloudController(ctx, cloud) })
	s.serving(t, "web-0", "web")
	s.serving(t, "web-1", "web")

	before := cloud.Calls("")
	s.begin(t, "web-0")
	s.allowed(t, "web-0")
	require.False(t, listed("web-0"))
	s.finish(t, "web-0")
	s.serving(t, "web-0", "web")
	t.Logf("%d calls for one Pod out and back", cloud.Calls("")-before)

	// While the cloud controller manager is down, and while the provider refuses, a Pod is kept.
	stop()
	cloud.Fail("*", alibabacloud.Throttled(2))
	s.begin(t, "web-1")
	asked := cloud.Calls("DescribeHealthStatus")
	s.eventually(t, "the load balancer is asked, and again after it refused",
		func() bool { return cloud.Calls("DescribeHealthStatus") > asked+3 })
	require.NotEmpty(t, podops.ProtectionFinalizers(s.pod(t, "web-1").Finalizers), "the load balancer has it still")
	run(t, func(ctx context.Context) { s.playCloudController(ctx, cloud) })
	s.allowed(t, "web-1")
	require.False(t, listed("web-1"))
	s.finish(t, "web-1")
	s.serving(t, "web-1", "web")
	require.Empty(t, cloud.Servers(slbGroup), "observing changes nothing")
}
