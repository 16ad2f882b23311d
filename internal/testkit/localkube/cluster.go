package localkube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"kusionstack.io/kuperator/internal/testkit/localkube/binaries"
)

const (
	defaultName         = "kuperator"
	defaultStartTimeout = 5 * time.Minute
	tokenLifetime       = 365 * 24 * time.Hour

	// startAttempts bounds how often Start takes new ports when another program
	// was quicker to bind the free ones it had found.
	startAttempts = 3
)

// Config says what cluster to start. The zero value is an API server on etcd,
// with free ports and a temporary folder.
type Config struct {
	// Name is for people: it is in messages and in the name of a temporary
	// folder. Empty means "kuperator".
	Name string
	// Dir holds the cluster's data, keys and logs. It must be absent or empty.
	// Empty means a new temporary folder. Stop removes what the cluster put into
	// it, and the folder too unless it was there before.
	Dir string
	// Kubernetes is the version to run, one of Versions. Empty means the first, or
	// what VersionVariable says.
	Kubernetes string
	// AssetsDir holds the binaries, which must be of that version. Empty means
	// those of AssetsOf.
	AssetsDir string

	// Port is the API server's port. 0 means a free one, etcd's ports too; else
	// etcd uses the two ports after it.
	Port int

	// WithControllerManager runs kube-controller-manager. Without it there are no default service accounts, so Pods are
	// then admitted without one.
	WithControllerManager bool
	// WithScheduler runs kube-scheduler.
	WithScheduler bool
	// WithNodes runs kwok and creates the simulated nodes.
	WithNodes bool
	// Nodes is the number of simulated nodes, node-0 and so on. It matters only
	// WithNodes; 0 then means 1.
	Nodes int
	// DualStack gives Services and Pods addresses of both families, IPv4 first. A
	// Service still has to ask for both (spec.ipFamilyPolicy).
	DualStack bool
	// Stages replaces what the simulated nodes do: a kwok configuration with its
	// Stages. Empty means the stages of this package.
	Stages []byte

	// Audit writes one JSON line per finished write request, with user and user
	// agent, without bodies, to the file AuditLog names.
	Audit bool
	// AuditReads lets get, list and watch requests be in the audit log as well.
	// It matters only with Audit.
	AuditReads bool

	// APIServerArgs are further flags of kube-apiserver. They win over the
	// package's own.
	APIServerArgs []string
	// EtcdArgs are further flags of etcd, likewise.
	EtcdArgs []string
	// ControllerManagerArgs are further flags of kube-controller-manager. They win over the package's own.
	ControllerManagerArgs []string

	// Detached lets the cluster outlive this process. Attach finds it again.
	Detached bool
	// Progress receives a line about each step that takes long. Nil discards them.
	Progress io.Writer
	// StartTimeout bounds Start, the building of binaries apart. 0 means five
	// minutes.
	StartTimeout time.Duration
}

// Cluster is a running cluster. Its methods may be called concurrently.
type Cluster struct {
	// Name is the one of the Config.
	Name string
	// Dir is the cluster's folder, an absolute path.
	Dir string
	// AdminKubeconfig is the path of a kubeconfig that may do everything
	// (user "admin", group system:masters).
	AdminKubeconfig string
	// AssetsDir is the folder of the binaries that the cluster runs.
	AssetsDir string

	mu    sync.Mutex // guards the components' processes and the state file
	state state
	admin *rest.Config
	// reserved are the ports, if they were chosen here: no other process gets one while a component restarts.
	reserved *Ports
}

// Start starts a cluster and returns when it is ready to use: the API server
// answers, the controller manager has made the default service account and all
// nodes are Ready, as far as the Config asks for them. On an error nothing is
// left behind. The context bounds starting only, not the life of the cluster.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	if config.Progress == nil {
		config.Progress = io.Discard
	}
	if config.Name == "" {
		config.Name = defaultName
	}
	if config.WithNodes && config.Nodes == 0 {
		config.Nodes = 1
	}
	if config.StartTimeout == 0 {
		config.StartTimeout = defaultStartTimeout
	}
	if config.AssetsDir == "" {
		assets, err := AssetsOf(ctx, config.Kubernetes, config.Progress)
		if err != nil {
			return nil, err
		}
		config.AssetsDir = assets
	}
	ctx, cancel := context.WithTimeout(ctx, config.StartTimeout)
	defer cancel()
	for attempt := 1; ; attempt++ {
		cluster, err := startOnce(ctx, config)
		// Only the component's log can tell this.
		portTaken := err != nil && strings.Contains(err.Error(), "address already in use")
		if err == nil || config.Port != 0 || !portTaken || attempt == startAttempts {
			return cluster, err
		}
		fmt.Fprintf(config.Progress, "a port of cluster %s was taken meanwhile; trying others\n", config.Name)
	}
}

func startOnce(ctx context.Context, config Config) (*Cluster, error) {
	dir, made, err := prepareDir(config)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Name: config.Name, Dir: dir, AssetsDir: config.AssetsDir,
		AdminKubeconfig: filepath.Join(dir, adminKubeconfigFile)}
	c.state = state{Name: config.Name, AssetsDir: config.AssetsDir, MadeDir: made, Audit: config.Audit,
		Detached: config.Detached}
	if err := c.launch(ctx, config); err != nil {
		err = fmt.Errorf("starting cluster %s: %w", config.Name, err)
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// prepareDir returns an empty folder and whether Stop is to remove it.
func prepareDir(config Config) (dir string, made bool, err error) {
	if config.Dir == "" {
		dir, err = os.MkdirTemp("", "localkube-"+config.Name+"-")
		return dir, true, err
	}
	dir, err = filepath.Abs(config.Dir)
	if err != nil {
		return "", false, err
	}
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return dir, true, os.MkdirAll(dir, 0o700)
	case err != nil:
		return "", false, err
	case len(entries) > 0:
		return "", false,
			fmt.Errorf("the folder %s of cluster %s is not empty; stop the cluster that is in it or choose another", dir,
				config.Name)
	}
	return dir, false, nil
}

// launch starts the components in the order of their needs.
func (c *Cluster) launch(ctx context.Context, config Config) error {
	ports, reserved, err := choosePorts(config.Port)
	if err != nil {
		return err
	}
	c.reserved = reserved
	kubernetesRelease, err := binaries.ReleaseOf(config.Kubernetes)
	if err != nil {
		return err
	}
	server := fmt.Sprintf("https://%s:%d", loopback, ports.apiServer)
	c.state.Server, c.state.EtcdPort = server, ports.etcdClient
	c.state.Components = components(c.Dir, config, kubernetesRelease, ports)
	if err := c.writeFiles(config, server); err != nil {
		return fmt.Errorf("preparing its folder: %w", err)
	}
	if c.admin, err = unlimitedConfig(c.AdminKubeconfig); err != nil {
		return err
	}

	fmt.Fprintln(config.Progress, "starting etcd")
	if err := c.run(binaries.Etcd); err != nil {
		return err
	}
	if err := c.waitForEtcd(ctx, ports.etcdClient); err != nil {
		return err
	}
	fmt.Fprintln(config.Progress, "starting kube-apiserver")
	if err := c.run(binaries.KubeAPIServer); err != nil {
		return err
	}
	if err := c.waitForAPIServer(ctx); err != nil {
		return err
	}
	var rest []string
	for _, name := range []string{binaries.KubeControllerManager, binaries.KubeScheduler, binaries.Kwok} {
		if c.component(name) != nil {
			rest = append(rest, name)
		}
	}
	if len(rest) > 0 {
		fmt.Fprintln(config.Progress, "starting "+strings.Join(rest, ", "))
	}
	if err := c.run(rest...); err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(c.admin)
	if err != nil {
		return err
	}
	if config.WithNodes {
		if err := createNodes(ctx, client, config.Nodes, config.DualStack); err != nil {
			return err
		}
	}
	if config.WithControllerManager {
		if err := c.waitForControllers(ctx, client); err != nil {
			return err
		}
	}
	if config.WithNodes {
		return c.waitForNodes(ctx, client, config.WithControllerManager)
	}
	return nil
}

// unlimitedConfig is the configuration of a client that waits for no rate limit of
// its own: a test or benchmark must see the API server's pace, not the client's.
func unlimitedConfig(kubeconfig string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return config, nil
}

// RESTConfig returns a new copy of the administrator's client configuration. It
// has no client-side rate limit.
func (c *Cluster) RESTConfig() *rest.Config {
	return rest.CopyConfig(c.admin)
}

// AuditLog returns the path of the audit log: one audit.k8s.io/v1 Event, stage
// ResponseComplete, as JSON per line. A line is written before the answer is
// sent; what the request did may be visible to others before. Empty means that the
// cluster keeps none.
func (c *Cluster) AuditLog() string {
	if !c.state.Audit {
		return ""
	}
	return filepath.Join(c.Dir, auditLogFile)
}

// Logs returns the path of each component's log by component name.
func (c *Cluster) Logs() map[string]string {
	paths := map[string]string{}
	for _, component := range c.state.Components {
		paths[component.Name] = component.Log
	}
	return paths
}

// LogTails returns the last lines of the log of each component, and says which of them do not run.
func (c *Cluster) LogTails() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all strings.Builder
	for _, component := range c.state.Components {
		all.WriteString(component.Tail(logTailLines))
	}
	return all.String()
}

// Processes returns the process id of each component by its name, 0 for one
// that does not run.
func (c *Cluster) Processes() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	pids := map[string]int{}
	for _, component := range c.state.Components {
		pids[component.Name] = 0
		if component.Running() {
			pids[component.Name] = component.PID
		}
	}
	return pids
}

// KubectlPath is the kubectl of the cluster's version.
func (c *Cluster) KubectlPath() string { return filepath.Join(c.AssetsDir, binaries.Kubectl) }

// Kubectl runs kubectl as administrator and returns its standard output. The
// error of a failed run holds its standard error.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	flags := []string{"--kubeconfig", c.AdminKubeconfig, "--cache-dir", filepath.Join(c.Dir, "kubectl-cache")}
	cmd := exec.CommandContext(ctx, c.KubectlPath(), append(flags, args...)...)
	cmd.Env = append(childEnvironment(), "KUBERC=off") // no personal defaults and aliases
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err,
			bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}

// ServiceAccountKubeconfig writes a kubeconfig with a token of the service
// account, valid for a year, into the cluster's folder and returns its path. The
// service account must exist. Its rights are those that RBAC gives it.
func (c *Cluster) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) (path string, err error) {
	client, err := kubernetes.NewForConfig(c.admin)
	if err != nil {
		return "", err
	}
	seconds := int64(tokenLifetime / time.Second)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	granted, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("asking for a token of service account %s/%s: %w", namespace, name, err)
	}
	// Neither a namespace nor a name can hold "_", so no two accounts share a file.
	path = filepath.Join(c.Dir, "service-account_"+namespace+"_"+name+".kubeconfig")
	return path, writeKubeconfig(path, c.state.Server, c.admin.CAData, &clientcmdapi.AuthInfo{Token: granted.Status.Token})
}

// ServiceAccountConfig returns a client configuration with that token. It has no client-side rate limit.
func (c *Cluster) ServiceAccountConfig(ctx context.Context, namespace, name string) (*rest.Config, error) {
	kubeconfig, err := c.ServiceAccountKubeconfig(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return unlimitedConfig(kubeconfig)
}

// NodeKubeconfig returns a kubeconfig with the rights of the kubelet of the node
// with this name.
func (c *Cluster) NodeKubeconfig(node string) ([]byte, error) {
	ca, err := loadPKI(filepath.Join(c.Dir, pkiDir))
	if err != nil {
		return nil, err
	}
	path := filepath.Join(c.Dir, "node_"+node+".kubeconfig")
	if err := ca.kubeconfig(path, c.state.Server, "system:node:"+node, "system:nodes"); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// RestartAPIServer stops kube-apiserver and starts it again on the same port
// and data. It returns when the API server is ready.
func (c *Cluster) RestartAPIServer(ctx context.Context) error {
	if err := c.StopComponent(binaries.KubeAPIServer); err != nil {
		return err
	}
	return c.StartComponent(ctx, binaries.KubeAPIServer)
}

// StopComponent ends one component, for example "kube-scheduler", and returns
// when its process is gone. A component that does not run is no error.
func (c *Cluster) StopComponent(name string) error {
	component := c.component(name)
	if component == nil {
		return fmt.Errorf("cluster %s has no component %s", c.Name, name)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(component.stop(), c.state.save(c.Dir))
}

// StartComponent starts a component that StopComponent stopped. For the API
// server and etcd it returns when they are ready, for the others as soon as they run. A
// component that runs already is no error.
func (c *Cluster) StartComponent(ctx context.Context, name string) error {
	component := c.component(name)
	if component == nil {
		return fmt.Errorf("cluster %s has no component %s", c.Name, name)
	}
	if err := c.run(name); err != nil {
		return err
	}
	switch name {
	case binaries.KubeAPIServer:
		return c.waitForAPIServer(ctx)
	case binaries.Etcd:
		return c.waitForEtcd(ctx, c.state.EtcdPort)
	}
	return nil
}

// KillComponent ends one component at once (SIGKILL), as a crash would, and returns when its process is gone. A
// component that does not run is no error.
func (c *Cluster) KillComponent(name string) error {
	component := c.component(name)
	if component == nil {
		return fmt.Errorf("cluster %s has no component %s", c.Name, name)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(component.kill(), c.state.save(c.Dir))
}

// PauseComponent stops a component in its tracks (SIGSTOP): its connections stay open, and it does not answer.
// ResumeComponent lets it go on.
func (c *Cluster) PauseComponent(name string) error { return c.signal(name, syscall.SIGSTOP) }

// ResumeComponent lets a paused component go on.
func (c *Cluster) ResumeComponent(name string) error { return c.signal(name, syscall.SIGCONT) }

func (c *Cluster) signal(name string, signal syscall.Signal) error {
	component := c.component(name)
	if component == nil {
		return fmt.Errorf("cluster %s has no component %s", c.Name, name)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return component.Signal(signal)
}

// EtcdDir is the folder of etcd's data. A copy that is made, or put there, while etcd does not run is a whole one.
func (c *Cluster) EtcdDir() string { return filepath.Join(c.Dir, etcdDir) }

// EtcdURL is where etcd's clients find it.
func (c *Cluster) EtcdURL() string { return fmt.Sprintf("http://%s:%d", loopback, c.state.EtcdPort) }

// Stop ends the processes of the cluster, the ones that it started and no
// others, and removes its data. A process that ignores SIGTERM is killed after
// 15 s. Stopping a stopped cluster does nothing.
func (c *Cluster) Stop() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	// A controller must not outlive the API server that it would retry against,
	// nor the API server etcd.
	for _, group := range [][]string{
		{binaries.Kwok, binaries.KubeScheduler, binaries.KubeControllerManager}, {binaries.KubeAPIServer}, {binaries.Etcd},
	} {
		var wg sync.WaitGroup
		results := make([]error, len(group))
		for i, name := range group {
			if component := c.component(name); component != nil {
				wg.Go(func() { results[i] = component.stop() })
			}
		}
		wg.Wait()
		errs = append(errs, results...)
	}
	if err := errors.Join(errs...); err != nil { // keep the record of what still runs
		return errors.Join(err, c.state.save(c.Dir))
	}
	c.reserved.Release()
	return c.removeDir()
}

func (c *Cluster) removeDir() error {
	if c.state.MadeDir {
		return os.RemoveAll(c.Dir)
	}
	entries, err := os.ReadDir(c.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var errs []error
	for _, entry := range entries { // the folder was empty before the cluster
		errs = append(errs, os.RemoveAll(filepath.Join(c.Dir, entry.Name())))
	}
	return errors.Join(errs...)
}

// run starts the named components that do not run and records them.
func (c *Cluster) run(names ...string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		component := c.component(name)
		if component.Running() {
			continue
		}
		if err := component.start(c.state.Detached); err != nil {
			return err
		}
		if err := c.state.save(c.Dir); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) component(name string) *component {
	i := slices.IndexFunc(c.state.Components, func(c *component) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return c.state.Components[i]
}

// lifeline returns the named components, all without names, as they are now:
// their death is a reason to wait no longer for something.
func (c *Cluster) lifeline(names ...string) []component {
	c.mu.Lock()
	defer c.mu.Unlock()
	var needed []component
	for _, component := range c.state.Components {
		if len(names) == 0 || slices.Contains(names, component.Name) {
			needed = append(needed, *component)
		}
	}
	return needed
}

// missing explains a failed check of named things, in a stable order.
func missing(reasons map[string]string) error {
	if len(reasons) == 0 {
		return nil
	}
	first := slices.Min(slices.Collect(maps.Keys(reasons)))
	return fmt.Errorf("%d to come, for example %s: %s", len(reasons), first, reasons[first])
}
