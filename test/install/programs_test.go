package install

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/child"
	"kusionstack.io/kuperator/internal/testkit/localkube"
)

const (
	loopback  = "127.0.0.1"
	stopGrace = 25 * time.Second // above the programs' own --shutdown-timeout
	webhooks  = "webhook-server"
)

// program is one replica of a Deployment, run as a process.
type program struct {
	child.Process
	probes string // host:port
	ports  *localkube.Ports
}

// rolledOut waits until the Deployments of an installation have their Pods, which means that admission, quota and
// scheduler took them, and returns the Deployments.
func (w *world) rolledOut(t *testing.T, namespace string) []appsv1.Deployment {
	t.Helper()
	list := &appsv1.DeploymentList{}
	await.Nil(t, "the Deployments' Pods", func() error {
		if err := w.client.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
			return err
		}
		for _, d := range list.Items {
			if d.Status.ObservedGeneration != d.Generation || d.Status.UpdatedReplicas != *d.Spec.Replicas ||
				d.Status.AvailableReplicas != *d.Spec.Replicas {
				return fmt.Errorf("%s has %d available Pods of %d: %+v", d.Name, d.Status.AvailableReplicas, *d.Spec.Replicas,
					d.Status.Conditions)
			}
		}
		return nil
	})
	require.NotEmpty(t, list.Items)
	return list.Items
}

// run starts a replica of a Deployment as a process. How it reaches the API server and is reached is this machine's.
func (w *world) run(t *testing.T, d *appsv1.Deployment, version string) *program {
	t.Helper()
	ports, err := localkube.ReservePorts(3)
	require.NoError(t, err)
	if d.Name != webhooks {
		return w.launch(t, d, version, ports)
	}
	address := net.JoinHostPort(loopback, strconv.Itoa(ports.Numbers[2]))
	w.callOutside(t, address)
	return w.launch(t, d, version, ports, "--webhook-bind-address="+loopback,
		"--webhook-port="+strconv.Itoa(ports.Numbers[2]), "--advertise-url=https://"+address, "--webhook-cert-settle=1s")
}

// launch starts a replica of a Deployment as a process: with the arguments and the environment of its container and
// further arguments, and the rights of its ServiceAccount. The first two ports are for probes and metrics.
func (w *world) launch(t *testing.T, d *appsv1.Deployment, version string, ports *localkube.Ports,
	further ...string) *program {
	t.Helper()
	container := d.Spec.Template.Spec.Containers[0]
	kubeconfig, err := w.cluster.ServiceAccountKubeconfig(t.Context(), d.Namespace,
		d.Spec.Template.Spec.ServiceAccountName)
	require.NoError(t, err)
	address := func(i int) string { return net.JoinHostPort(loopback, strconv.Itoa(ports.Numbers[i])) }
	args := append(append(append([]string{}, container.Args...), "--kubeconfig="+kubeconfig,
		"--health-probe-bind-address="+address(0), "--metrics-bind-address="+address(1)), further...)
	p := &program{
		Process: child.Process{Name: d.Name, Log: filepath.Join(t.TempDir(), d.Name+".log")}, probes: address(0),
		ports: ports,
	}
	require.NoError(t, p.Start(filepath.Join(w.programs(t, version), d.Name), args,
		environment(t, d.Namespace, container), false))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the log of %s:\n%s", p.Name, p.logTail(t))
		}
		p.stop(t)
	})
	return p
}

// callOutside has the API server call webhook-server at a URL, as the administrator says; the server itself may not
// leave its Service.
func (w *world) callOutside(t *testing.T, address string) {
	t.Helper()
	at := func(config admissionregistrationv1.WebhookClientConfig) admissionregistrationv1.WebhookClientConfig {
		return admissionregistrationv1.WebhookClientConfig{URL: ptr.To("https://" + address), CABundle: config.CABundle}
	}
	mutating, validating := &admissionregistrationv1.MutatingWebhookConfiguration{},
		&admissionregistrationv1.ValidatingWebhookConfiguration{}
	for _, configuration := range []client.Object{mutating, validating} {
		require.NoError(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
			if err := w.client.Get(t.Context(), client.ObjectKey{Name: webhooks}, configuration); err != nil {
				return err
			}
			for i := range mutating.Webhooks {
				mutating.Webhooks[i].ClientConfig = at(mutating.Webhooks[i].ClientConfig)
			}
			for i := range validating.Webhooks {
				validating.Webhooks[i].ClientConfig = at(validating.Webhooks[i].ClientConfig)
			}
			return w.client.Update(t.Context(), configuration)
		}))
	}
}

// environment is what the kubelet would make of the container's, beside what this machine needs.
func environment(t *testing.T, namespace string, container corev1.Container) []string {
	t.Helper()
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
	for _, v := range container.Env {
		value := v.Value
		switch {
		case v.ValueFrom == nil:
		case v.ValueFrom.ResourceFieldRef != nil:
			require.Equal(t, "limits.memory", v.ValueFrom.ResourceFieldRef.Resource, v.Name)
			limit := container.Resources.Limits.Memory().Value()
			require.Positive(t, limit, "without a limit it is the node's memory")
			value = strconv.FormatInt(limit, 10)
		default:
			require.NotNil(t, v.ValueFrom.FieldRef, v.Name)
			require.Equal(t, "metadata.namespace", v.ValueFrom.FieldRef.FieldPath, v.Name)
			value = namespace
		}
		env = append(env, v.Name+"="+value)
	}
	return env
}

// ready is nil when /readyz is good.
func (p *program) ready(t *testing.T) error {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.probes+"/readyz?verbose", nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		if !p.Running() {
			require.FailNow(t, p.Name+" ended by itself:\n"+p.logTail(t))
		}
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return err
}

func (p *program) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, p.End(syscall.SIGTERM, stopGrace))
	p.ports.Release()
}

// log is what the program has logged.
func (p *program) log(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(p.Log)
	require.NoError(t, err)
	return string(content)
}

func (p *program) logTail(t *testing.T) string {
	t.Helper()
	return child.LogTail(p.Log, 15)
}

// start runs one replica of each Deployment of an installation and waits until all are ready. Only one webhook-server
// can be advertised, and of the others one leads.
func (w *world) start(t *testing.T, namespace string) map[string]*program {
	t.Helper()
	programs := map[string]*program{}
	deployments := w.rolledOut(t, namespace)
	for i := range deployments {
		programs[deployments[i].Name] = w.run(t, &deployments[i], version)
	}
	for name, p := range programs {
		await.Nil(t, name+" ready", func() error { return p.ready(t) })
	}
	if programs[webhooks] != nil {
		w.waitAsked(t)
	}
	return programs
}

// waitAsked waits until the API server asks webhook-server: it learns of the configuration a moment after that was
// written.
func (w *world) waitAsked(t *testing.T) {
	t.Helper()
	await.Nil(t, "the API server to ask webhook-server", func() error {
		pod := managedPod(storyNamespace, "probe")
		pod.Name, pod.GenerateName = "", "probe-"
		if err := w.client.Create(t.Context(), pod, client.DryRunAll); err != nil {
			return err
		}
		if len(pod.Spec.ReadinessGates) == 0 {
			return errNotYet
		}
		return nil
	})
}

// managedPod is a managed Pod without an owner.
func managedPod(namespace, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
			Labels: map[string]string{"app": name, appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image1}}},
	}
}
