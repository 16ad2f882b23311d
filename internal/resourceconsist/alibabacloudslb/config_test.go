package alibabacloudslb

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/util/flowcontrol"
	ctrl "sigs.k8s.io/controller-runtime"

	"kusionstack.io/kuperator/internal/testkit/alibabacloud"
)

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
}

func TestConfigSaysWhatToChange(t *testing.T) {
	good := map[string]string{EnvKeyID: "id", EnvKeySecret: "secret"}
	for name, tc := range map[string]struct {
		change func(*Config)
		env    map[string]string
		file   string
		want   string
	}{
		"nothing": {nil, good, "", ""},
		"an endpoint instead of a region": {func(c *Config) { c.Region = "" },
			map[string]string{EnvKeyID: "id", EnvKeySecret: "s", EnvEndpoint: "slb.aliyuncs.com"}, "", ""},
		"no region": {func(c *Config) { c.Region = "" }, good, "",
			"--alibaba-cloud-slb-region is empty"},
		"owning without a region": {func(c *Config) { c.Region = "" },
			map[string]string{EnvKeyID: "id", EnvKeySecret: "s", EnvEndpoint: "slb.aliyuncs.com"}, groupsFile,
			"give the region of the server groups"},
		"no credentials": {nil, nil, "",
			"no credentials: set ALIYUN_SLB_AK_KEY and ALIYUN_SLB_AK_SECRET, or"},
		"half a key": {nil, map[string]string{EnvKeyID: "id"}, "",
			"only one of ALIYUN_SLB_AK_KEY and ALIYUN_SLB_AK_SECRET is set"},
		"half a role": {nil, map[string]string{EnvRoleARN: "r"}, "", "only some of"},
		"a folder that is not there": {func(c *Config) { c.CredentialsDir = "/nowhere" }, good, "",
			"/nowhere/ALIYUN_SLB_AK_KEY"},
		"an endpoint with a scheme": {nil,
			map[string]string{EnvKeyID: "id", EnvKeySecret: "s", EnvEndpoint: "https://slb.aliyuncs.com"}, "",
			"give a host without scheme"},
		"no calls at all":                 {func(c *Config) { c.QPS = 0 }, good, "", "--alibaba-cloud-slb-qps is 0"},
		"server groups":                   {nil, good, groupsFile, ""},
		"a misspelt field":                {nil, good, "vpc: x", `unknown field "vpc"`},
		"no VPC":                          {nil, good, "serverGroups: []", "vpcID is empty"},
		"an owner that is no description": {nil, good, "vpcID: v\nowner: 'a b'", "owner is"},
		"a group without namespaces": {nil, good, "vpcID: v\nserverGroups: [{name: a, id: rsp-a}]",
			"serverGroups[0].namespaces is empty"},
		"a load balancer's ID": {nil, good, "vpcID: v\nserverGroups: [{name: a, id: lb-a, namespaces: [x]}]",
			"begins with rsp-"},
		"a name twice": {nil, good,
			"vpcID: v\nserverGroups: [{name: a, id: rsp-a, namespaces: [x]}, {name: a, id: rsp-b, namespaces: [x]}]",
			"give each once"},
		"a family that is none": {nil, good,
			"vpcID: v\nserverGroups: [{name: a, id: rsp-a, namespaces: [x], addressFamily: v4}]", "give IPv4 or IPv6"},
		"a name that is no label": {nil, good, "vpcID: v\nserverGroups: [{name: A, id: rsp-a, namespaces: [x]}]",
			"give a DNS label"},
	} {
		t.Run(name, func(t *testing.T) {
			c := DefaultConfig()
			c.Region, c.Getenv = "cn-hangzhou", env(tc.env)
			if tc.file != "" {
				dir := t.TempDir()
				write(t, dir, map[string]string{"groups.yaml": tc.file})
				c.ServerGroupsFile = filepath.Join(dir, "groups.yaml")
			}
			if tc.change != nil {
				tc.change(&c)
			}
			err := c.Validate()
			if tc.want == "" {
				require.NoError(t, err)
				_, _, err = New(c)
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.want)
			require.NotContains(t, err.Error(), "secret")
		})
	}
}

func TestFlagsBeginWithTheName(t *testing.T) {
	c, fs := DefaultConfig(), pflag.NewFlagSet("", pflag.ContinueOnError)
	c.AddFlags(fs)
	fs.VisitAll(func(f *pflag.Flag) { require.Regexp(t, "^"+Name+"-", f.Name) })
	require.NoError(t, fs.Parse([]string{"--alibaba-cloud-slb-region=cn-x", "--alibaba-cloud-slb-qps=3"}))
	require.Equal(t, "cn-x", c.Region)
	require.Equal(t, float32(3), c.QPS)
}

func TestARotatedSecretIsUsedAtOnce(t *testing.T) {
	cloud := newCloudStandIn(t)
	cloud.SetBalancer("lb-1")
	dir := t.TempDir()
	write(t, dir, map[string]string{EnvKeyID: "test-id\n", EnvKeySecret: "test-secret\n"})
	c := configFor(t, cloud)
	c.CredentialsDir = dir
	observing, _, err := New(c)
	require.NoError(t, err)
	_, err = observing.Read(within(t), service(), nil)
	require.NoError(t, err)

	cloud.SetKey("test-id", "")
	cloud.SetKey("new-id", "new-secret")
	_, err = observing.Read(within(t), service(), nil)
	require.ErrorContains(t, err, "InvalidAccessKeyId.NotFound")
	require.ErrorContains(t, err, "check the credentials")
	write(t, dir, map[string]string{EnvKeyID: "new-id", EnvKeySecret: "new-secret"})
	_, err = observing.Read(within(t), service(), nil)
	require.NoError(t, err)

	write(t, dir, map[string]string{EnvKeySecret: "wrong"})
	_, err = observing.Read(within(t), service(), nil)
	require.ErrorContains(t, err, "SignatureDoesNotMatch", "the stand-in checks signatures")
	write(t, dir, map[string]string{EnvKeySecret: " "})
	_, err = observing.Read(within(t), service(), nil)
	require.ErrorContains(t, err, "is empty: put the key's value there")
}

func roleConfig(t *testing.T, cloud *alibabacloud.Cloud, role, token string) Config {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, map[string]string{"token": token})
	c := configFor(t, cloud)
	c.Getenv = env(map[string]string{EnvEndpoint: cloud.Host(), EnvRoleARN: role,
		EnvOIDCProviderARN: alibabacloud.Provider, EnvOIDCTokenFile: filepath.Join(dir, "token")})
	return c
}

func TestARoleIsAssumedOnceAndAgainWhenItsKeysExpire(t *testing.T) {
	cloud := newCloudStandIn(t)
	cloud.SetBalancer("lb-1")
	observing, owning, err := New(roleConfig(t, cloud, alibabacloud.Role, alibabacloud.Token))
	require.NoError(t, err)
	var all sync.WaitGroup
	failures := make(chan error, 20)
	for range 10 {
		all.Go(func() {
			_, err := observing.Read(within(t), service(), nil)
			failures <- err
			_, err = owning.Read(within(t), service(), nil)
			failures <- err
		})
	}
	all.Wait()
	close(failures)
	for err := range failures {
		require.NoError(t, err)
	}
	require.Equal(t, 1, cloud.Calls("AssumeRoleWithOIDC"), "the keys are shared")

	cloud.ExpireLentKeys()
	_, err = observing.Read(within(t), service(), nil)
	require.ErrorContains(t, err, "InvalidSecurityToken.Expired", "the stand-in checks the keys' expiry")
}

func TestARoleThatCannotBeAssumed(t *testing.T) {
	cloud := newCloudStandIn(t)
	cloud.SetBalancer("lb-1")
	for name, tc := range map[string]struct {
		role, token, want string
		fault             *alibabacloud.Fault
		wantFault         Fault
	}{
		"a role that is unknown": {"acs:ram::1:role/other", alibabacloud.Token, "EntityNotExist.Role", nil, FaultDenied},
		"a token that is not believed": {alibabacloud.Role, "stolen.and.secret", "AuthenticationFail.OIDCToken.Invalid", nil,
			FaultDenied},
		"too many calls to STS": {alibabacloud.Role, alibabacloud.Token, "Throttling.User", new(alibabacloud.Throttled(1)),
			FaultThrottled},
		"an error of STS": {alibabacloud.Role, alibabacloud.Token, "InternalError",
			&alibabacloud.Fault{Times: 1, Status: 500, Code: "InternalError"}, FaultTransient},
		"an answer that is not of STS": {alibabacloud.Role, alibabacloud.Token, "AssumeRoleWithOIDC",
			&alibabacloud.Fault{Times: 1, Status: 502, Body: "<html>"}, FaultTransient},
		"an answer without credentials": {alibabacloud.Role, alibabacloud.Token, "AssumeRoleWithOIDC",
			&alibabacloud.Fault{Times: 1, Body: "{}"}, FaultTransient},
	} {
		t.Run(name, func(t *testing.T) {
			cloud.Mend()
			if tc.fault != nil {
				cloud.Fail("AssumeRoleWithOIDC", *tc.fault)
			}
			observing, _, err := New(roleConfig(t, cloud, tc.role, tc.token))
			require.NoError(t, err)
			_, err = observing.Read(within(t), service(), nil)
			require.ErrorContains(t, err, tc.want)
			require.NotContains(t, err.Error(), tc.token)
			var call *CallError
			require.ErrorAs(t, err, &call)
			require.Equal(t, tc.wantFault, call.Fault)
		})
	}
	require.Zero(t, cloud.Calls("DescribeHealthStatus"))
}

// replaying sends each request twice and returns the second answer.
type replaying struct{ http.RoundTripper }

func (r replaying) RoundTrip(request *http.Request) (*http.Response, error) {
	first, err := r.RoundTripper.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	first.Body.Close()
	return r.RoundTripper.RoundTrip(request.Clone(request.Context()))
}

// changing changes each request after it was signed.
type changing struct{ http.RoundTripper }

func (c changing) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	query := request.URL.Query()
	query.Set("LoadBalancerId", "lb-2")
	request.URL.RawQuery = query.Encode()
	return c.RoundTripper.RoundTrip(request)
}

func TestTheStandInRefusesReplaysChangedAndOldRequests(t *testing.T) {
	now := time.Now
	cloud := alibabacloud.New("test-id", "test-secret", func() time.Time { return now() })
	t.Cleanup(cloud.Close)
	cloud.SetBalancer("lb-1")
	c := configFor(t, cloud)
	for want, transport := range map[string]http.RoundTripper{
		"SignatureNonceUsed":    replaying{cloud.Client().Transport},
		"SignatureDoesNotMatch": changing{cloud.Client().Transport},
	} {
		c.HTTP = &http.Client{Transport: transport}
		observing, _, err := New(c)
		require.NoError(t, err)
		_, err = observing.Read(within(t), service(), nil)
		require.ErrorContains(t, err, want)
	}
	now = func() time.Time { return time.Now().Add(20 * time.Minute) }
	observing, _ := newHalves(t, cloud)
	_, err := observing.Read(within(t), service(), nil)
	require.ErrorContains(t, err, "InvalidTimeStamp.Expired")
}

func TestNothingSecretIsLogged(t *testing.T) {
	cloud := newCloudStandIn(t)
	cloud.SetBalancer("lb-1")
	var mu sync.Mutex
	var logged bytes.Buffer
	log := funcr.New(func(prefix, args string) {
		mu.Lock()
		defer mu.Unlock()
		logged.WriteString(prefix + args + "\n")
	}, funcr.Options{Verbosity: 10})
	ctx := ctrl.LoggerInto(within(t), log)
	for _, c := range []Config{configFor(t, cloud), roleConfig(t, cloud, alibabacloud.Role, alibabacloud.Token)} {
		observing, owning, err := New(c)
		require.NoError(t, err)
		_, err = observing.Read(ctx, service(), nil)
		require.NoError(t, err)
		_, err = owning.Read(ctx, service(), []string{"rsp-none/10.0.0.1:1"})
		require.Error(t, err)
		logged.WriteString(err.Error())
	}
	require.Contains(t, logged.String(), "requestID")
	for _, secret := range []string{"test-secret", "lent-secret", "lent-token", alibabacloud.Token} {
		require.NotContains(t, logged.String(), secret)
	}
}

func TestCallsWaitForTheirTurn(t *testing.T) {
	cloud := newCloudStandIn(t)
	cloud.SetBalancer("lb-1")
	observing, _ := newHalves(t, cloud)
	observing.cloud.turns = &countedTurns{RateLimiter: flowcontrol.NewFakeAlwaysRateLimiter(), left: 2}
	for range 2 {
		_, err := observing.Read(within(t), service(), nil)
		require.NoError(t, err)
	}
	_, err := observing.Read(within(t), service(), nil)
	require.ErrorContains(t, err, "our own limit")
	require.Equal(t, 2, cloud.Calls(""))
}

// countedTurns grants so many turns.
type countedTurns struct {
	flowcontrol.RateLimiter
	left int
}

func (c *countedTurns) Wait(context.Context) error {
	if c.left--; c.left < 0 {
		return errors.New("would exceed context deadline")
	}
	return nil
}
