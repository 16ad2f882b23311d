package alibabacloudslb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/alibabacloud-go/tea/dara"
	"github.com/aliyun/credentials-go/credentials"
)

// Names of environment variables. The first three are those of Kuperator v0.7, the others those of Alibaba Cloud's
// SDKs, which ack-pod-identity-webhook sets in a Pod whose ServiceAccount has a RAM role.
const (
	// EnvKeyID and EnvKeySecret are an access key. A folder of credentials has files of these names.
	EnvKeyID     = "ALIYUN_SLB_AK_KEY"
	EnvKeySecret = "ALIYUN_SLB_AK_SECRET"
	// EnvEndpoint is the host of the SLB API, for example slb-vpc.cn-hangzhou.aliyuncs.com. Empty means that of the
	// region.
	EnvEndpoint = "ALIYUN_SLB_ENDPOINT"
	// EnvRoleARN, EnvOIDCProviderARN and EnvOIDCTokenFile are a RAM role and what this Pod proves its identity with.
	EnvRoleARN         = "ALIBABA_CLOUD_ROLE_ARN"
	EnvOIDCProviderARN = "ALIBABA_CLOUD_OIDC_PROVIDER_ARN"
	EnvOIDCTokenFile   = "ALIBABA_CLOUD_OIDC_TOKEN_FILE"
)

// keys are what one call is signed with. Never to be logged.
type keys struct {
	id, secret string
	// token goes with keys that were lent for a while; empty for an access key.
	token string
}

// credential is the SDK's form of the keys.
func (k keys) credential() (credentials.Credential, error) {
	config := &credentials.Config{Type: dara.String("access_key"), AccessKeyId: dara.String(k.id),
		AccessKeySecret: dara.String(k.secret)}
	if k.token != "" {
		config.Type, config.SecurityToken = dara.String("sts"), dara.String(k.token)
	}
	return credentials.NewCredential(config)
}

// keySource gives the keys for a call. It is called for each call, from many goroutines.
type keySource interface {
	keys(ctx context.Context) (keys, error)
}

// fixedKeys do not change while the process runs.
type fixedKeys keys

func (k fixedKeys) keys(context.Context) (keys, error) { return keys(k), nil }

// fileKeys are read from a mounted Secret for each call, so that a rotated key is used as soon as kubelet has put it
// there.
type fileKeys string

func (dir fileKeys) keys(context.Context) (keys, error) { return dir.read() }

func (dir fileKeys) read() (keys, error) {
	const attempts = 3
	for range attempts {
		id, err := readKey(string(dir), EnvKeyID)
		if err != nil {
			return keys{}, err
		}
		secret, err := readKey(string(dir), EnvKeySecret)
		if err != nil {
			return keys{}, err
		}
		// kubelet swaps all files of a Secret at once: an ID that is the same before and after goes with the secret.
		if again, err := readKey(string(dir), EnvKeyID); err == nil && again == id {
			return keys{id: id, secret: secret}, nil
		}
	}
	return keys{}, fmt.Errorf("the files in %s changed while they were read", dir)
}

func readKey(dir, name string) (string, error) {
	content, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return "", fmt.Errorf("reading the access key: %w", err)
	}
	key := strings.TrimSpace(string(content))
	if key == "" {
		return "", fmt.Errorf("reading the access key: %s is empty: put the key's value there", filepath.Join(dir, name))
	}
	return key, nil
}

// roleKeys are lent by STS for an hour in exchange for the token of this Pod's ServiceAccount (RRSA). The SDK fetches
// new ones three minutes before they expire.
type roleKeys struct {
	// turn has room for one, since the SDK's provider is not made for several at a time.
	turn     chan struct{}
	provider credentials.Credential
}

func newRoleKeys(roleARN, providerARN, tokenFile, stsEndpoint string) (*roleKeys, error) {
	const connectTimeout, readTimeout = 3000, 5000 // milliseconds; the SDK's call takes no context
	config := &credentials.Config{
		Type: dara.String("oidc_role_arn"), RoleArn: dara.String(roleARN), OIDCProviderArn: dara.String(providerARN),
		OIDCTokenFilePath: dara.String(tokenFile), RoleSessionName: dara.String("kuperator-resourceconsist-controller"),
		ConnectTimeout: dara.Int(connectTimeout), Timeout: dara.Int(readTimeout),
	}
	if stsEndpoint != "" {
		config.STSEndpoint = dara.String(stsEndpoint)
	}
	provider, err := credentials.NewCredential(config)
	if err != nil {
		return nil, fmt.Errorf("preparing to assume role %s: %w", roleARN, err)
	}
	return &roleKeys{turn: make(chan struct{}, 1), provider: provider}, nil
}

func (r *roleKeys) keys(ctx context.Context) (keys, error) {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return keys{}, fmt.Errorf("waiting for the RAM role's keys: %w", ctx.Err())
	}
	lent, err := r.provider.GetCredential()
	if err != nil {
		return keys{}, fmt.Errorf("assuming the RAM role in %s: %w", EnvRoleARN, stsError(err))
	}
	return keys{id: dara.StringValue(lent.AccessKeyId), secret: dara.StringValue(lent.AccessKeySecret),
		token: dara.StringValue(lent.SecurityToken)}, nil
}

// chooseKeys takes the first of: the folder, the environment's access key, the environment's role. It says what to set
// when there is none, or half of one.
func chooseKeys(dir, stsEndpoint string, getenv func(string) string) (keySource, error) {
	if dir != "" {
		_, err := fileKeys(dir).read()
		return fileKeys(dir), err
	}
	id, secret := getenv(EnvKeyID), getenv(EnvKeySecret)
	switch {
	case id != "" && secret != "":
		return fixedKeys{id: id, secret: secret}, nil
	case id != "" || secret != "":
		return nil, fmt.Errorf("only one of %s and %s is set: set both", EnvKeyID, EnvKeySecret)
	}
	role, provider, tokenFile := getenv(EnvRoleARN), getenv(EnvOIDCProviderARN), getenv(EnvOIDCTokenFile)
	switch {
	case role != "" && provider != "" && tokenFile != "":
		return newRoleKeys(role, provider, tokenFile, stsEndpoint)
	case role != "" || provider != "" || tokenFile != "":
		return nil, fmt.Errorf("only some of %s, %s and %s are set: set all three", EnvRoleARN, EnvOIDCProviderARN,
			EnvOIDCTokenFile)
	}
	return nil, errors.New("no credentials: set " + EnvKeyID + " and " + EnvKeySecret +
		", or mount a Secret with files of these names and name its folder in --" +
		flagCredentialsDir + ", or give the ServiceAccount a RAM role (" + EnvRoleARN + ", " + EnvOIDCProviderARN + ", " +
		EnvOIDCTokenFile + ")")
}
