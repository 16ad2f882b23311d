package binaries

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
	}.single(&Compilation{Name: "helm", Dir: filepath.Join(root, "hack", "helm"), Flags: releases[0].buildFlags(),
		Packages: []string{"helm.sh/helm/v4/cmd/helm"}}))
	return filepath.Join(dir, "helm"), err
}
