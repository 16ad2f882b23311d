package localkube

import (
	"context"
	"io"

	"kusionstack.io/kuperator/internal/testkit/localkube/binaries"
)

// What package binaries has, for those who run clusters.
const (
	KubernetesVersion = binaries.KubernetesVersion
	OldestVersion     = binaries.OldestVersion
	CacheVariable     = binaries.CacheVariable
	VersionVariable   = binaries.VersionVariable
)

// Versions are the Kubernetes versions that can be run, the usual one first.
func Versions() []string { return binaries.Versions() }

// CacheDir returns the folder that holds built binaries and named clusters. It need not exist.
func CacheDir() (string, error) { return binaries.CacheDir() }

// Assets is binaries.Assets.
func Assets(ctx context.Context, progress io.Writer) (dir string, err error) {
	return binaries.Assets(ctx, progress)
}

// AssetsOf is binaries.AssetsOf.
func AssetsOf(ctx context.Context, version string, progress io.Writer) (dir string, err error) {
	return binaries.AssetsOf(ctx, version, progress)
}

// AssetsCached is binaries.AssetsCached.
func AssetsCached(ctx context.Context, version string) (bool, error) {
	return binaries.AssetsCached(ctx, version)
}

// KubeletAsset is binaries.KubeletAsset.
func KubeletAsset(ctx context.Context, progress io.Writer) (path string, err error) {
	return binaries.KubeletAsset(ctx, progress)
}

// HelmAsset is binaries.HelmAsset.
func HelmAsset(ctx context.Context, progress io.Writer) (path string, err error) {
	return binaries.HelmAsset(ctx, progress)
}
