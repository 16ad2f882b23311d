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

// keySource gives what a call is signed with, never to be logged. It is called for each call, from many goroutines.
type keySource func(context.Context) (credentials.Credential, error)

// signer is the SDK's form of an access key; token goes with keys that were lent for a while, empty for others.
func signer(id, secret, token string) (credentials.Credential, error) {
	config := &credentials.Config{Type: dara.String("access_key"), AccessKeyId: dara.String(id),
		AccessKeySecret: dara.String(secret)}
	if token != "" {
		config.Type, config.SecurityToken = dara.String("sts"), dara.String(token)
	}
	return credentials.NewCredential(config)
}

// fileKeys are read from a mounted Secret for each call, so that a rotated key is used as soon as kubelet has put it
// there.
func fileKeys(dir string) (credentials.Credential, error) {
	const attempts = 3
	for range attempts {
		id, err := readKey(dir, EnvKeyID)
		if err != nil {
			return nil, err
		}
		secret, err := readKey(dir, EnvKeySecret)
		if err != nil {
			return nil, err
		}
		// kubelet swaps all files of a Secret at once: an ID that is the same before and after goes with the secret.
		if again, err := readKey(dir, EnvKeyID); err == nil && again == id {
			return signer(id, secret, "")
		}
	}
	return nil, fmt.Errorf("the files in %s changed while they were read", dir)
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
func roleKeys(roleARN, providerARN, tokenFile, stsEndpoint string) (keySource, error) {
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
	turn := make(chan struct{}, 1) // the SDK's provider is not made for several at a time
	return func(ctx context.Context) (credentials.Credential, error) {
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the RAM role's keys: %w", ctx.Err())
		}
		lent, err := provider.GetCredential()
		if err != nil {
			return nil, fmt.Errorf("assuming the RAM role in %s: %w", EnvRoleARN, stsError(err))
		}
		return signer(dara.StringValue(lent.AccessKeyId), dara.StringValue(lent.AccessKeySecret),
			dara.StringValue(lent.SecurityToken))
	}, nil
}

// chooseKeys takes the first of: the folder, the environment's access key, the environment's role. It says what to set
// when there is none, or half of one.
func chooseKeys(dir, stsEndpoint string, getenv func(string) string) (keySource, error) {
	if dir != "" {
		_, err := fileKeys(dir)
		return func(context.Context) (credentials.Credential, error) { return fileKeys(dir) }, err
	}
	id, secret := getenv(EnvKeyID), getenv(EnvKeySecret)
	switch {
	case id != "" && secret != "":
		fixed, err := signer(id, secret, "")
		return func(context.Context) (credentials.Credential, error) { return fixed, nil }, err
	case id != "" || secret != "":
		return nil, fmt.Errorf("only one of %s and %s is set: set both", EnvKeyID, EnvKeySecret)
	}
	role, provider, tokenFile := getenv(EnvRoleARN), getenv(EnvOIDCProviderARN), getenv(EnvOIDCTokenFile)
	switch {
	case role != "" && provider != "" && tokenFile != "":
		return roleKeys(role, provider, tokenFile, stsEndpoint)
	case role != "" || provider != "" || tokenFile != "":
		return nil, fmt.Errorf("only some of %s, %s and %s are set: set all three", EnvRoleARN, EnvOIDCProviderARN,
			EnvOIDCTokenFile)
	}
	return nil, errors.New("no credentials: set " + EnvKeyID + " and " + EnvKeySecret +
		", or mount a Secret with files of these names and name its folder in --" +
		flagCredentialsDir + ", or give the ServiceAccount a RAM role (" + EnvRoleARN + ", " + EnvOIDCProviderARN + ", " +
		EnvOIDCTokenFile + ")")
}
