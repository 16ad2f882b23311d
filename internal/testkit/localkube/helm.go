package localkube

import (
	"context"
	"io"
	"path/filepath"
)

// HelmAsset returns the path of a helm, built and cached the way Assets does. It is apart because only tests of the
// chart need it.
func HelmAsset(ctx context.Context, progress io.Writer) (path string, err error) {
	root, err := projectRoot()
	if err != nil {
		return "", err
	}
	dir, err := cachedBuild(ctx, progress, recipe{
		name:    "helm",
		sources: []string{filepath.Join(root, "hack", "helm")},
		flags:   releases[0].buildFlags(),
		build: func(ctx context.Context, into string) error {
			return goBuild(ctx, releases[0], filepath.Join(root, "hack", "helm"), "helm.sh/helm/v4/cmd/helm",
				filepath.Join(into, "helm"))
		},
	})
	return filepath.Join(dir, "helm"), err
}
