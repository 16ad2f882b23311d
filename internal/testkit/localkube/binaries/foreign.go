package binaries

import (
	"context"
	"io"
	"path"
	"path/filepath"
)

// Foreign is a program of others that people run the suite with. A module below hack pins its version.
type Foreign struct {
	name    string // for people
	folder  string // below hack
	module  string // whose source it is
	program string // its main package, theirs or, in the folder, one of ours
	tags    string // with which it is built
}

// CertManager is its controllers of Certificates and Issuers, and its cainjector.
var CertManager = Foreign{name: "cert-manager", folder: "certmanager",
	module: "github.com/cert-manager/cert-manager", program: modulePath + "/hack/certmanager"}

// PrometheusOperator is the Prometheus operator.
var PrometheusOperator = Foreign{name: "the Prometheus operator", folder: "prometheusoperator",
	module:  "github.com/prometheus-operator/prometheus-operator",
	program: "github.com/prometheus-operator/prometheus-operator/cmd/operator"}

// Prometheus is of the version that the operator runs by default. It finds targets in Kubernetes only: other ways would
// be a lot to compile.
var Prometheus = Foreign{name: "Prometheus", folder: "prometheusoperator", module: "github.com/prometheus/prometheus",
	program: "github.com/prometheus/prometheus/cmd/prometheus", tags: "remove_all_sd,enable_kubernetes_sd"}

// Flux is its kustomize-controller.
var Flux = Foreign{name: "Flux's kustomize-controller", folder: "flux",
	module: "github.com/fluxcd/kustomize-controller", program: "github.com/fluxcd/kustomize-controller"}

// Asset returns the path of the program, built and cached the way Assets does, which takes minutes the first time.
func (f Foreign) Asset(ctx context.Context, progress io.Writer) (program string, err error) {
	dir, err := f.dir()
	if err != nil {
		return "", err
	}
	flags := []string{"-mod=readonly", "-ldflags", "-s -w", "-tags", f.tags}
	key := append([]string{f.program}, flags...)
	built, err := cachedBuild(ctx, progress, recipe{name: f.name, sources: []string{dir}, flags: key}.single(
		&Compilation{Name: f.name, Dir: dir, Flags: flags, Packages: []string{f.program}}))
	return filepath.Join(built, path.Base(f.program)), err
}

// Source returns the folder of the program's module in Go's module cache. It has the CRDs, too.
func (f Foreign) Source(ctx context.Context) (string, error) {
	dir, err := f.dir()
	if err != nil {
		return "", err
	}
	if _, err := goOutput(ctx, dir, "mod", "download", f.module); err != nil {
		return "", err
	}
	return goOutput(ctx, dir, "list", "-m", "-f", "{{.Dir}}", f.module)
}

func (f Foreign) dir() (string, error) {
	root, err := projectRoot()
	return filepath.Join(root, "hack", f.folder), err
}
