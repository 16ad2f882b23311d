package fault

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/fakekubelet"
	"kusionstack.io/kuperator/internal/testkit/faultproxy"
	"kusionstack.io/kuperator/internal/testkit/localkube"
	"kusionstack.io/kuperator/internal/testkit/observer"
	"kusionstack.io/kuperator/internal/testkit/race"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

const (
	// patience bounds a wait for what takes a second or two on a machine that does nothing else.
	patience = 2 * time.Minute
	// restartAfter is how long a process that ended stays away: a kubelet is as quick the first time.
	restartAfter = 200 * time.Millisecond
	startTime    = 20 * time.Millisecond // of a simulated container
	node         = "node-0"
	otherNode    = "node-1"
	defaultCells = 4
)

// plane is one control plane with everything that plans share: user, kubelets, observer, webhook-server.
type plane struct {
	cluster  *localkube.Cluster
	client   client.Client
	clients  kubernetes.Interface
	view     *view
	observer *observer.Observer
	kubelet  *fakekubelet.Kubelet
	provider *provider
	jobs     *jobJudge
	dir, bin string
	// narrow is a collaset-controller whose bounds are such that a workload of four Pods meets them, built when it is
	// needed first.
	narrow string

	webhook     *process
	webhookPort *localkube.Ports

	cells chan *cell // those that are free
	all   []*cell
	refs  map[string]*reference // of the scenarios that have been run
	// judged are the violations of plans of tests that are over. The observer may take one back.
	judged map[observer.Violation]bool

	mu   sync.Mutex
	left []func() error // judged later
}

// shared is the plane of all tests, started by the first that needs it.
var shared struct {
	once  sync.Once
	plane *plane
	err   error
}

func TestMain(m *testing.M) {
	withoutDetector()
	flag.Parse()
	ctrllog.SetLogger(logr.Discard()) // of the tests' own clients
	code := m.Run()
	if shared.plane != nil {
		if err := shared.plane.stop(); err != nil {
			fmt.Fprintf(os.Stderr, "stopping: %v\n", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// withoutDetector executes the process again without the detector of changes in caches, which client-go heeds before
// main: this process has all objects of all plans in caches. The components have it.
func withoutDetector() {
	const detector = "KUBE_CACHE_MUTATION_DETECTOR"
	if os.Getenv(detector) == "" {
		return
	}
	_ = os.Unsetenv(detector)
	program, err := os.Executable()
	if err == nil {
		err = syscall.Exec(program, os.Args, os.Environ())
	}
	fmt.Fprintf(os.Stderr, "beginning anew without %s: %v\n", detector, err)
	os.Exit(1)
}

// start returns the shared plane.
func start(t *testing.T) *plane {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	if race.Enabled {
		t.Skip(
			"runs without the race detector: the proxies of twenty processes are in this one, and would be what takes the time")
	}
	shared.once.Do(func() {
		begin := time.Now()
		shared.plane, shared.err = startPlane(context.Background())
		fmt.Fprintf(os.Stderr, "control plane and cells are ready after %s\n", time.Since(begin).Round(time.Second))
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.plane
}

func startPlane(ctx context.Context) (*plane, error) {
	p := &plane{cells: make(chan *cell, 64), refs: map[string]*reference{}, judged: map[observer.Violation]bool{}}
	var err error
	if p.dir, err = os.MkdirTemp("", "kuperator-fault-"); err != nil {
		return nil, err
	}
	if err := p.launch(ctx); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

func (p *plane) launch(ctx context.Context) (err error) {
	if err := p.build(ctx); err != nil {
		return err
	}
	p.cluster, err = localkube.Start(ctx, localkube.Config{
		Name: "fault", Dir: filepath.Join(p.dir, "cluster"), Progress: os.Stderr, WithControllerManager: true,
		WithNodes: true, Nodes: 2,
	})
	if err != nil {
		return err
	}
	if err := p.cluster.StopComponent("kwok"); err != nil { // it made the nodes; the fake kubelet is quicker
		return err
	}
	for _, folder := range []string{"prerequisites", "overlays/local"} {
		if _, err := p.cluster.Kubectl(ctx, "apply", "--server-side", "--force-conflicts", "-k",
			filepath.Join(root, "deploy", folder)); err != nil {
			return err
		}
	}
	admin := p.cluster.RESTConfig()
	if err := localkube.WaitForCRDs(ctx, admin); err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), appsv1alpha1.AddToScheme(scheme)); err != nil {
		return err
	}
	admin.UserAgent = "fault-user"
	if p.client, err = client.New(admin, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	if p.clients, err = kubernetes.NewForConfig(admin); err != nil {
		return err
	}
	if err := p.slicesFollow(ctx); err != nil {
		return err
	}
	if p.kubelet, err = fakekubelet.Start(ctx, p.cluster.RESTConfig(),
		fakekubelet.Options{RestartTime: startTime}); err != nil {
		return err
	}
	p.provider, p.jobs = startProvider(p.client), newJobJudge()
	if p.view, err = watchAll(ctx, p.cluster.RESTConfig(), scheme, func(o client.Object, gone bool) {
		if pod, ok := o.(*corev1.Pod); ok {
			p.provider.sees(pod)
		}
		p.jobs.sees(o, gone)
	}); err != nil {
		return err
	}
	if p.observer, err = observer.Start(ctx, p.cluster.RESTConfig(),
		observer.Options{StuckAfter: 2 * patience}); err != nil {
		return err
	}
	if err := p.startWebhook(ctx); err != nil {
		return err
	}
	n := defaultCells
	if text := os.Getenv("FAULT_CELLS"); text != "" {
		if n, err = strconv.Atoi(text); err != nil || n < 1 {
			return fmt.Errorf("FAULT_CELLS is %q: give a number of cells", text)
		}
	}
	for i := range n {
		c, err := p.startCell(ctx, fmt.Sprintf("cell-%d", i))
		if err != nil {
			return err
		}
		p.all = append(p.all, c)
		p.cells <- c
	}
	return nil
}

// slicesFollow waits until Kubernetes keeps EndpointSlices: on a control plane that has just started they lag by
// seconds.
func (p *plane) slicesFollow(ctx context.Context) error {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "probe"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "probe"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if err := p.client.Create(ctx, service); err != nil {
		return err
	}
	err := until(ctx, "an EndpointSlice", func() error {
		var found discoveryv1.EndpointSliceList
		err := p.client.List(ctx, &found, client.InNamespace(service.Namespace),
			client.MatchingLabels{discoveryv1.LabelServiceName: service.Name})
		if err == nil && len(found.Items) == 0 {
			err = errors.New("there is none")
		}
		return err
	})
	return errors.Join(err, p.client.Delete(ctx, service))
}

const root = "../.." // of the sources

// build builds the components as they ship, without the race detector: the plans are about what happens between
// processes.
func (p *plane) build(ctx context.Context) error {
	p.bin = filepath.Join(root, "bin", "fault") // kept, so that an unchanged component is not linked again
	arguments := []string{"build", "-o", filepath.Join("bin", "fault") + string(filepath.Separator)}
	for _, component := range append(faulted(), suite.Webhook) {
		arguments = append(arguments, "./cmd/"+component)
	}
	cmd := exec.CommandContext(ctx, "go", arguments...)
	cmd.Dir = root
	if err := os.MkdirAll(p.bin, 0o755); err != nil {
		return err
	}
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the components: %w\n%s", err, bytes.TrimSpace(output))
	}
	return nil
}

// startWebhook starts the one webhook-server, behind a proxy as well, and waits until the API server asks it.
func (p *plane) startWebhook(ctx context.Context) (err error) {
	if p.webhook, err = p.newWebhook(ctx); err != nil {
		return err
	}
	p.webhook.supervise()
	return until(ctx, "the API server to ask webhook-server", func() error { return p.asked(ctx) })
}

// newWebhook is a webhook-server that is yet to be started. There may be one at a time.
func (p *plane) newWebhook(ctx context.Context, flags ...string) (_ *process, err error) {
	if p.webhookPort == nil {
		if p.webhookPort, err = localkube.ReservePorts(1); err != nil {
			return nil, err
		}
	}
	port := strconv.Itoa(p.webhookPort.Numbers[0])
	return p.newProcess(ctx, p.dir, suite.Webhook, append([]string{
		"--webhook-bind-address=127.0.0.1", "--webhook-port=" + port,
		"--advertise-url=https://" + net.JoinHostPort("127.0.0.1", port),
		"--webhook-cert-settle=1s", "--graceful-deletion", "--announce-services",
	}, flags...)...)
}

// asked is nil if the API server asks webhook-server about a Pod.
func (p *plane) asked(ctx context.Context) error { return suite.AsksWebhook(ctx, p.clients) }

// startProcess starts a component behind its own proxy.
func (p *plane) startProcess(ctx context.Context, dir, component string, flags ...string) (*process, error) {
	proc, err := p.newProcess(ctx, dir, component, flags...)
	if err == nil {
		proc.supervise()
	}
	return proc, err
}

// program is a component as it ships.
func (p *plane) program(component string) string { return filepath.Join(p.bin, component) }

// newProcess is a component that is yet to be started, with its own proxy, which has the rights of the component's
// ServiceAccount.
func (p *plane) newProcess(ctx context.Context, dir, component string, flags ...string) (*process, error) {
	identity, err := p.cluster.ServiceAccountConfig(ctx, suite.Namespace, component)
	if err != nil {
		return nil, err
	}
	proc := &process{component: component, path: p.program(component), log: filepath.Join(dir, component+".log")}
	if proc.proxy, err = faultproxy.Start(identity, faultproxy.Options{Name: component, Kill: proc.kill}); err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(dir, component+".kubeconfig")
	if err := proc.proxy.Kubeconfig(kubeconfig); err != nil {
		return nil, err
	}
	proc.args = append([]string{"--kubeconfig=" + kubeconfig, "--metrics-bind-address=0", "--health-probe-bind-address=0"},
		flags...)
	return proc, nil
}

func (p *plane) stop() error {
	var errs []error
	for _, c := range p.all {
		c.stop()
	}
	if p.webhook != nil {
		p.webhook.stop()
		p.webhookPort.Release()
	}
	if p.observer != nil {
		_, err := p.observer.Stop()
		errs = append(errs, err)
	}
	if p.kubelet != nil {
		p.kubelet.Stop()
	}
	if p.view != nil {
		p.view.stop()
	}
	if p.provider != nil {
		p.provider.server.Close()
	}
	if p.cluster != nil {
		errs = append(errs, p.cluster.Stop())
	}
	return errors.Join(append(errs, os.RemoveAll(p.dir))...)
}

// namespace makes a namespace in which Pods can be created at once.
func (p *plane) namespace(ctx context.Context, name string) error {
	err := p.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return until(ctx, "the default service account of "+name, func() error {
		return p.client.Get(ctx, client.ObjectKey{Namespace: name, Name: "default"}, &corev1.ServiceAccount{})
	})
}

// pass lets time go by: nil unless ctx ends before.
func pass(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// until asks again and again until check returns nil. For what the view does not show.
func until(ctx context.Context, what string, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
