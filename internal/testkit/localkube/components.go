package localkube

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"kusionstack.io/kuperator/internal/testkit/child"
	"kusionstack.io/kuperator/internal/testkit/localkube/binaries"
)

const (
	loopback     = "127.0.0.1"
	serviceRange = "10.96.0.0/16"
	apiServiceIP = "10.96.0.1"
	// serviceRange6 is the second range of a cluster with both address families.
	serviceRange6 = "fd00:10:96::/112"

	adminKubeconfigFile = "admin.kubeconfig"
	auditLogFile        = "audit.log"
	auditPolicyFile     = "audit-policy.json"
	stagesFile          = "stages.yaml"
	pkiDir              = "pki"
	etcdDir             = "etcd"
	logsDir             = "logs"
)

//go:embed stages.yaml
var defaultStages []byte

// ports are those of one cluster, all on the loopback address.
type ports struct {
	apiServer, etcdClient, etcdPeer int
}

// choosePorts takes base and the two after it, or three free ones for base 0, which stay reserved.
func choosePorts(base int) (ports, *Ports, error) {
	if base != 0 {
		return ports{base, base + 1, base + 2}, nil, nil
	}
	free, err := ReservePorts(3)
	if err != nil {
		return ports{}, nil, err
	}
	return ports{free.Numbers[0], free.Numbers[1], free.Numbers[2]}, free, nil
}

// components lists what the configuration asks for, with command lines. The
// paths in them are absolute.
func components(dir string, config Config, of binaries.Release, ports ports) []*component {
	in := func(parts ...string) string { return filepath.Join(append([]string{dir}, parts...)...) }
	url := func(port int) string { return fmt.Sprintf("http://%s:%d", loopback, port) }
	var all []*component
	add := func(name string, args ...string) {
		all = append(all, &component{
			Process: child.Process{Name: name, Log: in(logsDir, name+".log")},
			Path:    filepath.Join(config.AssetsDir, name),
			Args:    args,
		})
	}

	add(binaries.Etcd, append([]string{
		"--name=local",
		"--data-dir=" + in(etcdDir),
		"--listen-client-urls=" + url(ports.etcdClient),
		"--advertise-client-urls=" + url(ports.etcdClient),
		"--listen-peer-urls=" + url(ports.etcdPeer),
		"--initial-advertise-peer-urls=" + url(ports.etcdPeer),
		"--initial-cluster=local=" + url(ports.etcdPeer),
		"--quota-backend-bytes=8589934592",
		"--unsafe-no-fsync", // the data need not outlive the machine
		"--log-level=warn",
	}, config.EtcdArgs...)...)

	services := serviceRange
	if config.DualStack {
		services += "," + serviceRange6
	}
	apiServer := []string{
		"--etcd-servers=" + url(ports.etcdClient),
		"--bind-address=" + loopback,
		"--advertise-address=" + loopback,
		"--endpoint-reconciler-type=none", // Endpoints may not hold a loopback address
		fmt.Sprintf("--secure-port=%d", ports.apiServer),
		"--tls-cert-file=" + in(pkiDir, "apiserver.crt"),
		"--tls-private-key-file=" + in(pkiDir, "apiserver.key"),
		"--client-ca-file=" + in(pkiDir, "ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-signing-key-file=" + in(pkiDir, "service-account.key"),
		"--service-account-key-file=" + in(pkiDir, "service-account.key"),
		"--authorization-mode=Node,RBAC",
		"--allow-privileged=true", // as clusters do; Pod Security decides
		"--service-cluster-ip-range=" + services,
	}
	if !config.WithControllerManager {
		apiServer = append(apiServer, "--disable-admission-plugins=ServiceAccount") // there are no default accounts
	}
	if config.Audit {
		apiServer = append(apiServer,
			"--audit-policy-file="+in(auditPolicyFile),
			"--audit-log-path="+in(auditLogFile),
			"--audit-log-maxsize=1000000", // MB: never rotate under a reader
		)
	}
	add(binaries.KubeAPIServer, append(apiServer, config.APIServerArgs...)...)

	if config.WithControllerManager {
		controllerManager := []string{
			"--kubeconfig=" + in(binaries.KubeControllerManager+".kubeconfig"),
			"--service-account-private-key-file=" + in(pkiDir, "service-account.key"),
			"--root-ca-file=" + in(pkiDir, "ca.crt"),
			"--cluster-signing-cert-file=" + in(pkiDir, "ca.crt"),
			"--cluster-signing-key-file=" + in(pkiDir, "ca.key"),
			"--use-service-account-credentials=true",
			"--controllers=*,-node-ipam-controller", // those of clouds need a provider, and 1.37 has none
			"--node-monitor-grace-period=8760h",     // simulated nodes send no heartbeats
			"--horizontal-pod-autoscaler-sync-period=2s",
			"--leader-elect=false",
			"--secure-port=0",
			"--kube-api-qps=200", "--kube-api-burst=400",
		}
		if of.ShutdownTimeout {
			controllerManager = append(controllerManager, "--controller-shutdown-timeout=1s")
		}
		add(binaries.KubeControllerManager, append(controllerManager, config.ControllerManagerArgs...)...)
	}
	if config.WithScheduler {
		add(binaries.KubeScheduler,
			"--kubeconfig="+in(binaries.KubeScheduler+".kubeconfig"),
			"--leader-elect=false",
			"--secure-port=0",
			"--kube-api-qps=200", "--kube-api-burst=400",
		)
	}
	if config.WithNodes {
		add(binaries.Kwok,
			"--kubeconfig="+in(binaries.Kwok+".kubeconfig"),
			"--config="+in(stagesFile),
		)
	}
	return all
}

// writeFiles makes the cluster's keys, kubeconfigs and configuration files.
func (c *Cluster) writeFiles(config Config, server string) error {
	if err := os.MkdirAll(filepath.Join(c.Dir, logsDir), 0o755); err != nil {
		return err
	}
	ca, err := newPKI(filepath.Join(c.Dir, pkiDir))
	if err != nil {
		return err
	}
	for _, user := range []struct {
		file, name string
		groups     []string
	}{
		{adminKubeconfigFile, "admin", []string{"system:masters"}},
		{binaries.KubeControllerManager + ".kubeconfig", "system:kube-controller-manager", nil},
		{binaries.KubeScheduler + ".kubeconfig", "system:kube-scheduler", nil},
		// One process plays all kubelets, which the Node authorizer cannot express.
		{binaries.Kwok + ".kubeconfig", "kwok", []string{"system:masters"}},
	} {
		if err := ca.kubeconfig(filepath.Join(c.Dir, user.file), server, user.name, user.groups...); err != nil {
			return err
		}
	}
	stages := config.Stages
	if len(stages) == 0 {
		stages = defaultStages
	}
	policy, err := auditPolicy(config.AuditReads)
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{stagesFile: stages, auditPolicyFile: policy} {
		if err := os.WriteFile(filepath.Join(c.Dir, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// auditPolicy records who wrote what, once per request and never its content.
func auditPolicy(reads bool) ([]byte, error) {
	type rule struct {
		Level string   `json:"level"`
		Verbs []string `json:"verbs,omitempty"`
	}
	rules := []rule{{Level: "None", Verbs: []string{"get", "list", "watch"}}, {Level: "Metadata"}}
	if reads {
		rules = rules[1:]
	}
	return json.Marshal(map[string]any{
		"apiVersion": "audit.k8s.io/v1",
		"kind":       "Policy",
		"omitStages": []string{"RequestReceived", "ResponseStarted", "Panic"},
		"rules":      rules,
	})
}
