package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/child"
	"kusionstack.io/kuperator/internal/testkit/localkube"
)

// Namespace is where the suite is installed.
const Namespace = "kuperator-system"

// The components by the names of their binaries.
const (
	CollaSet          = "collaset-controller"
	PodTransitionRule = "podtransitionrule-controller"
	Lifecycle         = "lifecycle-controller"
	ResourceConsist   = "resourceconsist-controller"
	OperationJob      = "operationjob-controller"
	PodDecoration     = "poddecoration-controller"
	Webhook           = "webhook-server"
)

const (
	defaultOverlay = "local"
	loopback       = "127.0.0.1"
	readyTimeout   = 5 * time.Minute
	pollInterval   = 50 * time.Millisecond
	logTailLines   = 20
	maxProbed      = 8 << 20
)

// Components returns the names of all components.
func Components() []string {
	return []string{CollaSet, PodTransitionRule, Lifecycle, ResourceConsist, OperationJob, PodDecoration, Webhook}
}

// ReplicaName names the n-th process of a component, from 1; the first has the component's own name. All replicas have
// the rights of the component's ServiceAccount, each with its own token.
func ReplicaName(component string, n int) string {
	if n <= 1 {
		return component
	}
	return component + "-" + strconv.Itoa(n)
}

// ComponentOf is the component that a process runs, by the process's name; "" if that is no name of one.
func ComponentOf(process string) string {
	for _, component := range Components() {
		if process == component {
			return component
		}
		if n, err := strconv.Atoi(strings.TrimPrefix(process, component+"-")); err == nil && n > 1 {
			return component
		}
	}
	return ""
}

// Config says what to run. The zero value is everything, on a new cluster with
// one node.
type Config struct {
	// Name is for people. Empty means "kuperator".
	Name string
	// Dir holds logs, kubeconfigs and the record of processes. Empty means a
	// temporary folder, which Stop removes.
	Dir string
	// ClusterDir holds the cluster, if one is started. Empty means a folder in Dir.
	ClusterDir string

	// Kubeconfig is the path of an administrator's kubeconfig for a cluster that
	// exists. Empty starts one. Nothing is counted on a cluster that exists: its
	// audit log is its own.
	Kubeconfig string
	// Kubernetes is the version of the cluster that is started, one of
	// localkube.Versions. Empty means the usual one.
	Kubernetes string
	// Nodes is the number of simulated nodes; 0 means 1.
	Nodes int
	// AuditReads lets reads be counted as well.
	AuditReads bool
	// AuditWithoutAnswers leaves the cluster its own audit policy, which costs the API server less: answers to writes to
	// Pods are not recorded, so no write is known to have changed nothing, and watches are not counted.
	AuditWithoutAnswers bool
	// APIServerArgs are further flags of kube-apiserver. They win over the cluster's own.
	APIServerArgs []string
	// EtcdArgs and ControllerManagerArgs are the same for etcd and kube-controller-manager.
	EtcdArgs              []string
	ControllerManagerArgs []string

	// Overlay is the folder in deploy/overlays that is applied. Empty means
	// "local".
	Overlay string
	// WithoutCRDs are names of CustomResourceDefinitions to remove again before
	// any component starts.
	WithoutCRDs []string

	// Components are the ones to start, and further replicas of them (ReplicaName). Nil means one of each; empty means
	// none.
	Components []string
	// Args are further flags by component or replica. They win over the suite's own. A replica without an entry has
	// those of its component.
	Args map[string][]string
	// Env is further environment by component or replica, as "NAME=value".
	Env map[string][]string
	// BuildOverlay is the path of a file for `go build -overlay`: the components are built with other contents of some
	// source files. Empty means as they are.
	BuildOverlay string
	// Race builds the components with the race detector; what it finds is an
	// error of Stop.
	Race bool

	// Detached lets processes and cluster outlive this process.
	Detached bool
	// Progress receives a line about each step that takes long. Nil discards them.
	Progress io.Writer
}

// Suite is a running suite. Its methods must not be called concurrently, those
// that only read excepted.
type Suite struct {
	// Name is the one of the Config.
	Name string
	// Dir holds logs and kubeconfigs.
	Dir string
	// Cluster is the cluster that was started, nil on one that existed before.
	Cluster *localkube.Cluster
	// AdminKubeconfig is the path of a kubeconfig that may do everything.
	AdminKubeconfig string

	root      string // of the sources
	kubectl   string
	admin     *rest.Config
	config    Config
	madeDir   bool
	bin       string
	processes map[string]*process
	// built has the components that were built: to ask the compiler each time takes seconds on a busy machine.
	built sync.Map
}

// Start starts a cluster if need be, installs the suite and starts its
// components. It returns when each of them is ready, or with an error and
// nothing left behind. The context bounds starting only.
func Start(ctx context.Context, config Config) (*Suite, error) {
	if config.Name == "" {
		config.Name = "kuperator"
	}
	if config.Overlay == "" {
		config.Overlay = defaultOverlay
	}
	if config.Components == nil {
		config.Components = Components()
	}
	if config.Progress == nil {
		config.Progress = io.Discard
	}
	root, err := moduleRoot()
	if err != nil {
		return nil, err
	}
	s := &Suite{Name: config.Name, Dir: config.Dir, root: root, config: config, processes: map[string]*process{}}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *Suite) start(ctx context.Context) error {
	if err := s.makeDir(); err != nil {
		return err
	}
	assets, err := localkube.AssetsOf(ctx, s.config.Kubernetes, s.config.Progress)
	if err != nil {
		return err
	}
	s.kubectl = filepath.Join(assets, "kubectl")
	s.step("building the components")
	if s.bin, err = s.build(ctx, s.config.Components...); err != nil {
		return err
	}
	if err := s.startCluster(ctx, assets); err != nil {
		return err
	}
	s.step("installing deploy/overlays/%s", s.config.Overlay)
	if err := s.install(ctx); err != nil {
		return err
	}
	s.step("starting %d components", len(s.config.Components))
	for _, name := range s.config.Components {
		if err := s.launch(ctx, name); err != nil {
			return err
		}
	}
	return s.waitReady(ctx, s.config.Components...)
}

func (s *Suite) step(format string, args ...any) {
	fmt.Fprintf(s.config.Progress, format+"\n", args...)
}

func (s *Suite) makeDir() error {
	if s.Dir == "" {
		dir, err := os.MkdirTemp("", "kuperator-suite-")
		s.Dir, s.madeDir = dir, true
		return err
	}
	dir, err := filepath.Abs(s.Dir)
	if err != nil {
		return err
	}
	s.Dir = dir
	return os.MkdirAll(dir, 0o700)
}

func (s *Suite) startCluster(ctx context.Context, assets string) error {
	s.AdminKubeconfig = s.config.Kubeconfig
	if s.AdminKubeconfig == "" {
		s.step("starting a cluster with %d nodes", max(s.config.Nodes, 1))
		apiServerArgs := s.config.APIServerArgs
		if !s.config.AuditWithoutAnswers {
			policy := filepath.Join(s.Dir, "audit-policy.json")
			if err := os.WriteFile(policy, auditPolicy(s.config.AuditReads), 0o600); err != nil {
				return err
			}
			apiServerArgs = append([]string{"--audit-policy-file=" + policy}, apiServerArgs...)
		}
		dir := s.config.ClusterDir
		if dir == "" {
			dir = filepath.Join(s.Dir, "cluster")
		}
		cluster, err := localkube.Start(ctx, localkube.Config{
			Name: s.Name, Dir: dir, Kubernetes: s.config.Kubernetes, AssetsDir: assets, Detached: s.config.Detached,
			Progress:              s.config.Progress,
			WithControllerManager: true, WithScheduler: true, WithNodes: true, Nodes: max(s.config.Nodes, 1),
			Audit: true, AuditReads: s.config.AuditReads,
			APIServerArgs:         apiServerArgs,
			EtcdArgs:              s.config.EtcdArgs,
			ControllerManagerArgs: s.config.ControllerManagerArgs,
		})
		if err != nil {
			return err
		}
		s.Cluster, s.AdminKubeconfig = cluster, cluster.AdminKubeconfig
	}
	admin, err := clientcmd.BuildConfigFromFlags("", s.AdminKubeconfig)
	if err != nil {
		return fmt.Errorf("reading kubeconfig %s: %w", s.AdminKubeconfig, err)
	}
	admin.QPS = -1
	s.admin = admin
	return nil
}

// install applies what the overlays presuppose and the overlay, and waits until the kinds are served.
func (s *Suite) install(ctx context.Context) error {
	for _, folder := range []string{"prerequisites", filepath.Join("overlays", s.config.Overlay)} {
		if _, err := s.Kubectl(ctx, "apply", "--server-side", "--force-conflicts", "-k",
			filepath.Join(s.root, "deploy", folder)); err != nil {
			return err
		}
	}
	for _, crd := range s.config.WithoutCRDs {
		if _, err := s.Kubectl(ctx, "delete", "crd", crd, "--wait"); err != nil {
			return err
		}
	}
	return localkube.WaitForCRDs(ctx, s.admin)
}

// launch starts a component with the token of its ServiceAccount; it is not
// ready yet.
func (s *Suite) launch(ctx context.Context, name string) error {
	component := ComponentOf(name)
	if component == "" {
		return fmt.Errorf("there is no component %q; there are %s", name, strings.Join(Components(), ", "))
	}
	p := s.processes[name]
	if p == nil {
		if _, err := s.build(ctx, name); err != nil {
			return err
		}
		kubeconfig, credential, err := s.serviceAccountKubeconfig(ctx, component, name)
		if err != nil {
			return err
		}
		p, err = newProcess(name, s.Dir, s.bin, kubeconfig)
		if err != nil {
			return err
		}
		p.credential = credential
		s.processes[name] = p
	}
	if err := markUsed(s.bin); err != nil {
		return err
	}
	args, own := s.config.Args[name]
	if !own {
		args = s.config.Args[component]
	}
	if err := p.start(args, s.config.Env[name], s.config.Detached); err != nil {
		return err
	}
	return s.record()
}

func (s *Suite) build(ctx context.Context, names ...string) (string, error) {
	var components []string
	for _, name := range names {
		component := ComponentOf(name)
		if _, built := s.built.Load(component); component != "" && !built && !slices.Contains(components, component) {
			components = append(components, component)
		}
	}
	dir, err := build(ctx, s.root, s.config.Race, s.config.BuildOverlay, components...)
	if err != nil {
		return "", err
	}
	for _, component := range components {
		s.built.Store(component, true)
	}
	return dir, nil
}

// waitReady waits until the components answer that they are ready, and the API
// server of a cluster that was started here asks webhook-server.
func (s *Suite) waitReady(ctx context.Context, names ...string) error {
	clients, err := s.Clients()
	if err != nil {
		return err
	}
	return s.wait(ctx, names, "be ready", func(ctx context.Context, client *http.Client, p *process) error {
		if _, err := probe(ctx, client, fmt.Sprintf("http://%s/readyz", p.Probe)); err != nil {
			return err
		}
		if p.component != Webhook || s.Cluster == nil {
			return nil
		}
		return AsksWebhook(ctx, clients)
	})
}

// AsksWebhook is nil if a managed Pod would get its readiness gate. The API server
// learns of what webhook-server has written a moment after that is ready.
func AsksWebhook(ctx context.Context, clients kubernetes.Interface) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-",
			Labels: map[string]string{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "main"}}},
	}
	pod, err := clients.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, pod,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err == nil && len(pod.Spec.ReadinessGates) == 0 {
		err = errors.New("the API server does not ask it yet")
	}
	return err
}

// WaitLeading waits until each of the components holds its Lease, as its metrics say. One that is ready may still be
// waiting for the Lease of a predecessor that was killed, and do nothing meanwhile. webhook-server has no Lease.
func (s *Suite) WaitLeading(ctx context.Context, names ...string) error {
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == Webhook })
	return s.wait(ctx, names, "lead", func(ctx context.Context, client *http.Client, p *process) error {
		leads, err := p.leads(ctx, client)
		if err == nil && !leads {
			err = errors.New("somebody else has its Lease")
		}
		return err
	})
}

// Leader names the running process of a component that says it leads, or "" if none does now. Paused ones are not
// asked.
func (s *Suite) Leader(ctx context.Context, component string) string {
	client := &http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	for _, name := range slices.Sorted(maps.Keys(s.processes)) {
		p := s.processes[name]
		if p.component != component || p.paused || !p.Running() {
			continue
		}
		if leads, err := p.leads(ctx, client); err == nil && leads {
			return name
		}
	}
	return ""
}

func (p *process) leads(ctx context.Context, client *http.Client) (bool, error) {
	metrics, err := scrape(ctx, client, p)
	return bytes.Contains(metrics, []byte(fmt.Sprintf("leader_election_master_status{name=%q} 1", p.component))), err
}

// Credential is what the requests of a process carry in the audit log, which tells the replicas of a component apart.
// It is "" for a process that was never started.
func (s *Suite) Credential(name string) string {
	if p := s.processes[name]; p != nil {
		return p.credential
	}
	return ""
}

// Pause stops a process in its tracks (SIGSTOP): its connections stay open, and it does not answer. Resume lets it go
// on. A process that does not run is an error.
func (s *Suite) Pause(name string) error {
	p := s.processes[name]
	if p == nil {
		return fmt.Errorf("%s was never started", name)
	}
	return p.pause()
}

// Resume lets a paused process go on (SIGCONT).
func (s *Suite) Resume(name string) error {
	if p := s.processes[name]; p != nil {
		return p.resume()
	}
	return nil
}

// Metrics returns what a running component says of itself, in the text format of Prometheus. It asks in plain HTTP:
// the component must not have the flag --metrics-secure.
func (s *Suite) Metrics(ctx context.Context, name string) (string, error) {
	p := s.processes[name]
	if p == nil {
		return "", fmt.Errorf("%s was never started", name)
	}
	client := &http.Client{Timeout: time.Minute}
	defer client.CloseIdleConnections()
	body, err := scrape(ctx, client, p)
	return string(body), err
}

// MetricsAddress is host:port of a component's /metrics, "" if it was never started.
func (s *Suite) MetricsAddress(name string) string {
	if p := s.processes[name]; p != nil {
		return p.Metrics
	}
	return ""
}

// WebhookAddress is host:port of a webhook-server's webhooks, "" if it was never started. The port stays its own
// while it does not run.
func (s *Suite) WebhookAddress(name string) string {
	if p := s.processes[name]; p != nil {
		return p.webhook
	}
	return ""
}

func scrape(ctx context.Context, client *http.Client, p *process) ([]byte, error) {
	return probe(ctx, client, fmt.Sprintf("http://%s/metrics", p.Metrics))
}

// wait asks each of the components until check returns nil. It gives up when one has ended, and after readyTimeout.
func (s *Suite) wait(
	ctx context.Context, names []string, what string, check func(context.Context, *http.Client, *process) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	client := &http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	for _, name := range names {
		p := s.processes[name]
		for {
			err := check(ctx, client, p)
			if err == nil {
				break
			}
			if !p.Running() {
				return fmt.Errorf("%s ended while it was to %s; the last lines of its log:\n%s", name, what, s.LogTail(name))
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("waiting for %s to %s: %w; the last lines of its log:\n%s", name, what, err, s.LogTail(name))
			case <-time.After(pollInterval):
			}
		}
	}
	return nil
}

// probe returns the body of a successful answer.
func probe(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxProbed))
	if err != nil {
		return nil, fmt.Errorf("reading the answer of %s: %w", url, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s: %.1024s", url, response.Status, bytes.TrimSpace(body))
	}
	return body, nil
}

// RESTConfig returns a new copy of the administrator's client configuration.
func (s *Suite) RESTConfig() *rest.Config { return rest.CopyConfig(s.admin) }

// Clients returns a client of the administrator.
func (s *Suite) Clients() (kubernetes.Interface, error) { return kubernetes.NewForConfig(s.admin) }

// KubectlPath is the path of a kubectl.
func (s *Suite) KubectlPath() string { return s.kubectl }

// Tools builds the plugin of kubectl and returns a folder with it and kubectl, for a PATH.
func (s *Suite) Tools(ctx context.Context) (string, error) {
	const plugin = "kubectl-kuperator"
	built, err := build(ctx, s.root, false, "", plugin)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(s.Dir, "bin")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	for link, target := range map[string]string{"kubectl": s.kubectl, plugin: filepath.Join(built, plugin)} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil && !errors.Is(err, os.ErrExist) {
			return "", err
		}
	}
	return dir, nil
}

// Program is the path of a component's program, which is there once the component was started.
func (s *Suite) Program(component string) string { return filepath.Join(s.bin, component) }

// Kubectl runs kubectl as administrator and returns what it prints. The error of
// a failed run holds its standard error.
func (s *Suite) Kubectl(ctx context.Context, args ...string) (string, error) {
	return s.KubectlWith(ctx, "", args...)
}

// KubectlWith is Kubectl with something on its standard input.
func (s *Suite) KubectlWith(ctx context.Context, stdin string, args ...string) (string, error) {
	flags := []string{"--kubeconfig", s.AdminKubeconfig, "--cache-dir", filepath.Join(s.Dir, "kubectl-cache")}
	cmd := exec.CommandContext(ctx, s.kubectl, append(flags, args...)...)
	cmd.Env = append(os.Environ(), "KUBERC=off")
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err,
			bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}

// Kill ends a component at once, as a crash would (SIGKILL), and returns when it
// is gone. A component that does not run is no error.
func (s *Suite) Kill(name string) error {
	if p := s.processes[name]; p != nil {
		return p.kill()
	}
	return nil
}

// StopComponent asks a component to end (SIGTERM) and returns when it is gone.
func (s *Suite) StopComponent(name string) error {
	if p := s.processes[name]; p != nil {
		return p.stop()
	}
	return nil
}

// Restart starts a component, after killing it if it runs, and returns when it
// is ready. A standby is ready too: it may have to wait for a Lease that its
// predecessor held. Args replace the further flags it had; none keeps them, and
// a lone "" drops them.
func (s *Suite) Restart(ctx context.Context, name string, args ...string) error {
	if err := s.Kill(name); err != nil {
		return err
	}
	if len(args) > 0 {
		next := maps.Clone(s.config.Args)
		if next == nil {
			next = map[string][]string{}
		}
		next[name] = slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a == "" })
		s.config.Args = next
	}
	if err := s.launch(ctx, name); err != nil {
		return err
	}
	return s.waitReady(ctx, name)
}

// Revive starts again what has ended without being asked to, as a kubelet does, and returns the names; it does not wait
// until they are ready.
func (s *Suite) Revive(ctx context.Context) ([]string, error) {
	var revived []string
	for _, name := range slices.Sorted(maps.Keys(s.processes)) {
		if p := s.processes[name]; p.Running() || p.ended {
			continue
		}
		if err := s.launch(ctx, name); err != nil {
			return revived, err
		}
		revived = append(revived, name)
	}
	return revived, nil
}

// Running says which components run, sorted.
func (s *Suite) Running() []string {
	var names []string
	for name, p := range s.processes {
		if p.Running() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Processes returns the process ids of the running components.
func (s *Suite) Processes() map[string]int {
	pids := map[string]int{}
	for name, p := range s.processes {
		if p.Running() {
			pids[name] = p.PID
		}
	}
	return pids
}

// Died returns an error about each component that ended without being asked to, with the last lines of its log, and
// about each data race; nil if none did.
func (s *Suite) Died() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(s.processes)) {
		p := s.processes[name]
		if !p.Running() && !p.ended {
			errs = append(errs, fmt.Errorf("%s ended by itself; the last lines of its log:\n%s", name, s.LogTail(name)))
		}
		crashes, err := child.InLog(p.Log, child.Crashes...)
		if err != nil {
			errs = append(errs, err)
		}
		for _, crash := range crashes {
			errs = append(errs, fmt.Errorf("%s:\n%s", name, crash))
		}
	}
	return errors.Join(errs...)
}

// Logs returns the path of a component's log, "" if it never ran.
func (s *Suite) Logs(name string) string {
	if p := s.processes[name]; p != nil {
		return p.Log
	}
	return ""
}

// LogTails returns the last lines of the logs of all that ever ran here: the components, and the processes of the
// cluster that was started. Of those it says which do not run.
func (s *Suite) LogTails() string {
	var all strings.Builder
	for _, name := range slices.Sorted(maps.Keys(s.processes)) {
		all.WriteString(s.processes[name].Tail(logTailLines))
	}
	if s.Cluster != nil {
		all.WriteString(s.Cluster.LogTails())
	}
	return all.String()
}

// LogTail returns the last lines of a component's log.
func (s *Suite) LogTail(name string) string {
	return child.LogTail(s.Logs(name), logTailLines)
}

// Stop ends the components and the cluster that was started, and removes what
// they left. It returns what Died says, and what could not be stopped. Stopping a
// stopped suite does nothing.
func (s *Suite) Stop() error {
	errs := []error{s.Died()}
	for _, component := range []string{OperationJob, CollaSet, PodTransitionRule, ResourceConsist, Lifecycle, Webhook} {
		for _, p := range s.processes {
			if p.component == component {
				errs = append(errs, p.stop())
			}
		}
	}
	if s.Cluster != nil {
		errs = append(errs, s.Cluster.Stop())
	}
	if err := errors.Join(errs[1:]...); err != nil { // keep the record of what still runs
		return errors.Join(errs...)
	}
	for _, p := range s.processes {
		p.ports.Release()
	}
	clear(s.processes)
	if s.madeDir {
		errs = append(errs, os.RemoveAll(s.Dir))
	}
	return errors.Join(errs...)
}
