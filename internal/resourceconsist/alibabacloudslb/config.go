package alibabacloudslb

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/yaml"
)

const (
	flagRegion         = Name + "-region"
	flagCredentialsDir = Name + "-credentials-dir"
	flagServerGroups   = Name + "-server-groups"
	flagQPS            = Name + "-qps"
	flagBurst          = Name + "-burst"
	flagECSEndpoint    = Name + "-ecs-endpoint"
	flagSTSEndpoint    = Name + "-sts-endpoint"
)

// Config is what the platform team chooses.
type Config struct {
	// Region is that of the load balancers, for example cn-hangzhou. Empty is for observing only, with EnvEndpoint.
	Region string
	// CredentialsDir is a folder with files EnvKeyID and EnvKeySecret, a mounted Secret. Empty means the environment.
	CredentialsDir string
	// ServerGroupsFile has the virtual server groups that Services may name; see ServerGroups. Empty means none.
	ServerGroupsFile string
	// QPS and Burst bound the requests to the API, all together.
	QPS   float32
	Burst int
	// Endpoint, ECSEndpoint and STSEndpoint are hosts, with a port or without. Empty means those of the region;
	// Endpoint is read from EnvEndpoint if empty.
	Endpoint, ECSEndpoint, STSEndpoint string
	// HTTP makes the requests. Nil means one that trusts the system's authorities and follows HTTPS_PROXY.
	HTTP *http.Client
	// Getenv reads the environment. Nil means that of the process.
	Getenv func(string) string

	keys   keySource
	turns  flowcontrol.RateLimiter
	groups ServerGroups
}

// DefaultConfig is a working default but for the region and credentials.
func DefaultConfig() Config { return Config{QPS: 10, Burst: 20} }

// AddFlags adds a flag for each choice. Their defaults are what c holds.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Region, flagRegion, c.Region,
		"Region of the load balancers, for example cn-hangzhou. Required unless all Services are only observed and "+
			EnvEndpoint+" is set.")
	fs.StringVar(&c.CredentialsDir, flagCredentialsDir, c.CredentialsDir,
		"Directory with an access key in the files "+EnvKeyID+" and "+EnvKeySecret+
			", read for each call. Empty: the environment variables of these names, or else the Pod's RAM role (RRSA).")
	fs.StringVar(&c.ServerGroupsFile, flagServerGroups, c.ServerGroupsFile,
		"YAML file with the virtual server groups that Services may name in the annotation "+ServerGroupsAnnotation+".")
	fs.Float32Var(&c.QPS, flagQPS, c.QPS, "Maximum requests per second to the API, of all kinds together.")
	fs.IntVar(&c.Burst, flagBurst, c.Burst, "Burst of requests to the API above the rate.")
	fs.StringVar(&c.ECSEndpoint, flagECSEndpoint, c.ECSEndpoint,
		"Host of the ECS API. Empty: that of the region. The host of the SLB API is in the environment variable "+
			EnvEndpoint+".")
	fs.StringVar(&c.STSEndpoint, flagSTSEndpoint, c.STSEndpoint,
		"Host of the STS API for RAM roles, for example sts-vpc.cn-hangzhou.aliyuncs.com. Empty: the default of the SDK.")
}

// Validate says what is wrong with the choices. It reads files and the environment, and makes no call.
func (c *Config) Validate() error {
	prepared := *c
	return prepared.prepare()
}

// prepare fills in what is read from elsewhere.
func (c *Config) prepare() error {
	if c.Getenv == nil {
		c.Getenv = os.Getenv
	}
	if c.Endpoint == "" {
		c.Endpoint = c.Getenv(EnvEndpoint)
	}
	if c.HTTP == nil {
		c.HTTP = newHTTP()
	}
	var errs []error
	if c.Region == "" && c.Endpoint == "" {
		errs = append(errs, fmt.Errorf("--%s is empty: give the region of the load balancers, or set %s",
			flagRegion, EnvEndpoint))
	}
	if c.Region == "" && c.ServerGroupsFile != "" {
		errs = append(errs, fmt.Errorf("--%s is given without --%s: give the region of the server groups",
			flagServerGroups, flagRegion))
	}
	if c.QPS <= 0 || c.Burst < 1 {
		errs = append(errs, fmt.Errorf("--%s is %g and --%s is %d: give more than 0 and at least 1", flagQPS, c.QPS,
			flagBurst, c.Burst))
	}
	for flag, host := range map[string]string{EnvEndpoint: c.Endpoint, "--" + flagECSEndpoint: c.ECSEndpoint,
		"--" + flagSTSEndpoint: c.STSEndpoint} {
		if strings.Contains(host, "/") {
			errs = append(errs, fmt.Errorf("%s is %q: give a host without scheme and path, for example slb.aliyuncs.com",
				flag, host))
		}
	}
	var err error
	if c.ServerGroupsFile != "" {
		c.groups, err = readServerGroups(c.ServerGroupsFile)
		errs = append(errs, err)
	}
	c.keys, err = chooseKeys(c.CredentialsDir, c.STSEndpoint, c.Getenv)
	errs = append(errs, err)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	c.turns = flowcontrol.NewTokenBucketRateLimiter(c.QPS, c.Burst)
	return nil
}

// newHTTP makes the client for calls. It follows no redirection: a signed request is for one host.
func newHTTP() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 10, IdleConnTimeout: time.Minute,
			TLSHandshakeTimeout: 5 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// ServerGroups are the virtual server groups that Services may name, the content of the file.
type ServerGroups struct {
	// VPCID is the VPC of the Pods' network interfaces.
	VPCID string `json:"vpcID"`
	// Owner begins the description of each backend server that is made here. Empty means kuperator. Clusters that share
	// a group need different ones: each removes what has its own owner and no Pod.
	Owner string `json:"owner,omitempty"`
	// Groups are the groups.
	Groups []ServerGroup `json:"serverGroups"`
}

// ServerGroup is one virtual server group.
type ServerGroup struct {
	// Name is what Services say: a DNS label.
	Name string `json:"name"`
	// ID is the provider's, for example rsp-bp1234567890.
	ID string `json:"id"`
	// Namespaces are those whose Services may name it. "*" means any.
	Namespaces []string `json:"namespaces"`
	// AddressFamily is IPv4 or IPv6. Empty means IPv4.
	AddressFamily string `json:"addressFamily,omitempty"`
}

const defaultOwner = "kuperator"

// maxOwner leaves room for a digest after the owner in a description of at most 80 characters.
const maxOwner = 32

var (
	// textual is what a description may consist of (SLB API 2014-05-15).
	textual = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)
	groupID = regexp.MustCompile(`^rsp-[A-Za-z0-9-]+$`)
)

func readServerGroups(file string) (ServerGroups, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return ServerGroups{}, fmt.Errorf("reading --%s: %w", flagServerGroups, err)
	}
	var read ServerGroups
	if err := yaml.UnmarshalStrict(content, &read); err != nil {
		return ServerGroups{}, fmt.Errorf("reading --%s: %s: %w", flagServerGroups, file, err)
	}
	if read.Owner == "" {
		read.Owner = defaultOwner
	}
	if err := read.validate(); err != nil {
		return ServerGroups{}, fmt.Errorf("reading --%s: %s: %w", flagServerGroups, file, err)
	}
	return read, nil
}

func (g *ServerGroups) validate() error {
	var errs []error
	if g.VPCID == "" {
		errs = append(errs, errors.New("vpcID is empty: give the VPC of the Pods' network interfaces"))
	}
	if !textual.MatchString(g.Owner) || len(g.Owner) > maxOwner {
		errs = append(errs, fmt.Errorf("owner is %q: give at most %d letters, digits, '-', '.' and '_'", g.Owner, maxOwner))
	}
	for i, group := range g.Groups {
		if len(validation.IsDNS1123Label(group.Name)) > 0 {
			errs = append(errs, fmt.Errorf("serverGroups[%d].name is %q: give a DNS label", i, group.Name))
		}
		if !groupID.MatchString(group.ID) {
			errs = append(errs,
				fmt.Errorf("serverGroups[%d].id is %q: give the ID of a virtual server group, which begins with rsp-", i, group.ID))
		}
		if len(group.Namespaces) == 0 {
			errs = append(errs,
				fmt.Errorf(`serverGroups[%d].namespaces is empty: give the namespaces whose Services may use it, or "*"`, i))
		}
		if !slices.Contains([]string{"", "IPv4", "IPv6"}, group.AddressFamily) {
			errs = append(errs, fmt.Errorf("serverGroups[%d].addressFamily is %q: give IPv4 or IPv6", i, group.AddressFamily))
		}
		for _, other := range g.Groups[:i] {
			if other.Name == group.Name || other.ID == group.ID {
				errs = append(errs, fmt.Errorf("serverGroups[%d] has the name or the ID of an earlier one: give each once", i))
			}
		}
	}
	return errors.Join(errs...)
}

// named is the group that a Service of the namespace calls by this name, if it may.
func (g *ServerGroups) named(name, namespace string) (ServerGroup, bool) {
	for _, group := range g.Groups {
		if group.Name == name && (slices.Contains(group.Namespaces, namespace) || slices.Contains(group.Namespaces, "*")) {
			return group, true
		}
	}
	return ServerGroup{}, false
}

// usableBy are the names that a Service of the namespace may call.
func (g *ServerGroups) usableBy(namespace string) []string {
	var names []string
	for _, group := range g.Groups {
		if _, ok := g.named(group.Name, namespace); ok {
			names = append(names, group.Name)
		}
	}
	return names
}

// ownOf are the IDs of the groups that are for this namespace by name.
func (g *ServerGroups) ownOf(namespace string) []string {
	var ids []string
	for _, group := range g.Groups {
		if slices.Contains(group.Namespaces, namespace) {
			ids = append(ids, group.ID)
		}
	}
	return ids
}
