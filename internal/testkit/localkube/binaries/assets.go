// Package binaries builds, once, the programs that a local cluster consists of. It imports little, so that a program
// that tells of a long build is itself built at once.
package binaries

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

const (
	modulePath = "kusionstack.io/kuperator"

	// KubernetesVersion is the version that the usual control plane reports. It
	// must be the one that hack/cluster/go.mod requires.
	KubernetesVersion = "v1.37.2"

	// AssetsVariable names the environment variable that gives Assets a folder
	// of ready-made binaries; Assets then builds nothing.
	AssetsVariable = "KUPERATOR_ASSETS"

	// CacheVariable names the environment variable that gives the folder for
	// built binaries and named clusters. Unset means "kuperator" in the user's
	// cache folder.
	CacheVariable = "KUPERATOR_CACHE"

	progressInterval = 15 * time.Second
	lockPollInterval = 200 * time.Millisecond
	goStopGrace      = 10 * time.Second // for a go command that was told to stop
)

// The control plane's programs.
const (
	Etcd                  = "etcd"
	KubeAPIServer         = "kube-apiserver"
	KubeControllerManager = "kube-controller-manager"
	KubeScheduler         = "kube-scheduler"
	Kubectl               = "kubectl"
	Kwok                  = "kwok"
)

// controlPlaneRoles are the names under which hack/cluster/kubernetes answers.
var controlPlaneRoles = []string{Etcd, KubeAPIServer, KubeControllerManager, KubeScheduler, Kubectl}

// Assets returns a folder with etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl and kwok, fit to
// be KUBEBUILDER_ASSETS. When the cache has no such folder for the present sources, Go version and platform, Assets
// builds one with the local go command, which takes minutes the first time ever and writes to progress (nil: discarded)
// what it is doing. With a filled cache it writes nothing and takes milliseconds. Two processes never build the same
// folder at once, and a folder that is there is complete.
func Assets(ctx context.Context, progress io.Writer) (dir string, err error) {
	return AssetsOf(ctx, "", progress)
}

// AssetsOf is Assets for one of Versions. Empty means what VersionVariable says
// or, without that, the first of them; only then a ready-made folder is taken.
func AssetsOf(ctx context.Context, version string, progress io.Writer) (dir string, err error) {
	if given := os.Getenv(AssetsVariable); given != "" && version == "" {
		return given, checkAssets(given)
	}
	wanted, err := controlPlane(version)
	if err != nil {
		return "", err
	}
	return cachedBuild(ctx, progress, wanted)
}

// Prepare compiles the programs of this project that the arguments name, as for go build, into Go's cache, and returns
// a folder as Assets does. It says first what is to be compiled and about how long that takes. Other than Assets it
// takes programs that are on the machine already, and says so.
func Prepare(ctx context.Context, progress io.Writer, programs ...string) (dir string, err error) {
	root, err := projectRoot()
	if err != nil {
		return "", err
	}
	compiler := NewCompiler(progress)
	project := &Compilation{Name: "Kuperator's programs", Dir: root}
	imports, err := goOutput(ctx, root, append([]string{"list", "-f", `{{join .Imports "\n"}}`}, programs...)...)
	if err != nil {
		return "", err
	}
	project.Packages = slices.Compact(slices.Sorted(slices.Values(strings.Fields(imports))))
	all := []*Compilation{project}
	given := os.Getenv(AssetsVariable)
	var wanted recipe
	if given == "" {
		if wanted, err = machinesControlPlane(ctx, progress); err != nil {
			return "", err
		}
		if given = wanted.given; given == "" {
			cached, err := wanted.cached(ctx)
			if err != nil {
				return "", err
			}
			if !cached {
				all = append(all, wanted.compilations...)
			}
		}
	}
	if err := compiler.Plan(ctx, all...); err != nil {
		return "", err
	}
	compiler.Announce(all...)
	if len(project.weights) > 0 {
		if err := compiler.Compile(ctx, project); err != nil {
			return "", fmt.Errorf("compiling %s: %w", project.Name, err)
		}
	}
	if given != "" {
		return given, checkAssets(given)
	}
	wanted.compiler = compiler
	return cachedBuild(ctx, progress, wanted)
}

// AssetsCached reports whether AssetsOf would find what it needs in the cache.
func AssetsCached(ctx context.Context, version string) (bool, error) {
	wanted, err := controlPlane(version)
	if err != nil {
		return false, err
	}
	return wanted.cached(ctx)
}

// controlPlane says how the binaries of a version are built.
func controlPlane(version string) (recipe, error) {
	return controlPlaneBeside(version, "")
}

// controlPlaneBeside is controlPlane; etcd, kube-apiserver and kubectl are copied from a folder if one is given.
func controlPlaneBeside(version, readyMade string) (recipe, error) {
	kubernetes, err := ReleaseOf(version)
	if err != nil {
		return recipe{}, err
	}
	root, err := projectRoot()
	if err != nil {
		return recipe{}, err
	}
	module := filepath.Join(root, "hack", "cluster")
	var sources []string
	for _, file := range kubernetes.modules() {
		sources = append(sources, filepath.Join(module, file))
	}
	r := recipe{
		name:    "a Kubernetes " + kubernetes.minor + " control plane and kwok",
		sources: append(sources, filepath.Join(module, "kubernetes"), filepath.Join(root, "hack", "kwok")),
		flags:   append(kubernetes.buildFlags(), fmt.Sprint(kwokMends)),
	}
	main := &Compilation{Name: "a Kubernetes " + kubernetes.minor + " control plane", Dir: module,
		Flags: kubernetes.buildFlags(), Packages: []string{"./kubernetes"}}
	roles := controlPlaneRoles
	if readyMade != "" {
		roles = []string{KubeControllerManager, KubeScheduler}
		main.Name = strings.Join(roles, " and ")
		main.Packages = []string{"./controllers"}
		r.name = strings.Join(append(roles, Kwok), ", ")
		r.flags = append(r.flags, readyMade)
		r.sources = append(r.sources, filepath.Join(module, "controllers"))
	}
	r.compilations = []*Compilation{main, {Name: "kwok, which simulates nodes", Dir: filepath.Join(root, "hack", "kwok"),
		Flags: releases[0].buildFlags(), Packages: []string{kwokModule + "/cmd/kwok"}}}
	r.build = func(ctx context.Context, compiler *Compiler, into string) error {
		if err := compiler.Compile(ctx, main, "-o", filepath.Join(into, "kubernetes")); err != nil {
			return err
		}
		if readyMade != "" {
			for _, role := range envtestRoles {
				if err := copyProgram(filepath.Join(readyMade, role), filepath.Join(into, role)); err != nil {
					return err
				}
			}
		}
		for _, role := range roles {
			if err := os.Symlink("kubernetes", filepath.Join(into, role)); err != nil {
				return err
			}
		}
		// kwok is the same for all, and its module knows nothing of the control plane's.
		return buildKwok(ctx, compiler, root, filepath.Join(into, Kwok))
	}
	return r, nil
}

// KubeletAsset returns the path of a real kubelet, built and cached the way
// Assets does. It is apart because only tests with a real node need it.
func KubeletAsset(ctx context.Context, progress io.Writer) (path string, err error) {
	root, err := projectRoot()
	if err != nil {
		return "", err
	}
	dir, err := cachedBuild(ctx, progress, recipe{
		name: "a kubelet",
		sources: []string{
			filepath.Join(root, "hack", "cluster", "go.mod"),
			filepath.Join(root, "hack", "cluster", "go.sum"),
			filepath.Join(root, "hack", "cluster", "kubelet"),
		},
		flags: releases[0].buildFlags(),
	}.single(&Compilation{Name: "a kubelet", Dir: filepath.Join(root, "hack", "cluster"), Flags: releases[0].buildFlags(),
		Packages: []string{"./kubelet"}}))
	return filepath.Join(dir, "kubelet"), err
}

// CacheDir returns the folder that holds built binaries and named clusters. It
// need not exist.
func CacheDir() (string, error) {
	if given := os.Getenv(CacheVariable); given != "" {
		return filepath.Abs(given)
	}
	user, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding a cache folder (set %s to choose one): %w", CacheVariable, err)
	}
	return filepath.Join(user, "kuperator"), nil
}

// recipe says how to fill one folder of the cache.
type recipe struct {
	name    string   // for people
	sources []string // files and folders whose content decides the result
	flags   []string // of the go command, and what is changed of the sources: they decide it too
	build   func(ctx context.Context, compiler *Compiler, into string) error
	// compilations are what build compiles.
	compilations []*Compilation
	// compiler has planned them; nil if they are to be planned.
	compiler *Compiler
	// given is a folder that has everything already; nothing is built then.
	given string
}

// single is the recipe of one program.
func (r recipe) single(of *Compilation) recipe {
	r.compilations = []*Compilation{of}
	r.build = func(ctx context.Context, compiler *Compiler, into string) error {
		return compiler.Compile(ctx, of, "-o", into+string(filepath.Separator))
	}
	return r
}

// cached reports whether the cache has the result.
func (r recipe) cached(ctx context.Context) (bool, error) {
	cache, err := CacheDir()
	if err != nil {
		return false, err
	}
	key, err := r.key(ctx)
	return err == nil && isDir(filepath.Join(cache, key)), err
}

func cachedBuild(ctx context.Context, progress io.Writer, r recipe) (string, error) {
	if progress == nil {
		progress = io.Discard
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	key, err := r.key(ctx)
	if err != nil {
		return "", err
	}
	target := filepath.Join(cache, key)
	if isDir(target) {
		return target, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("making the cache folder: %w", err)
	}
	unlock, err := lockFile(ctx, target+".lock", func() {
		fmt.Fprintf(progress, "another process is building %s; waiting for it\n", r.name)
	})
	if err != nil {
		return "", err
	}
	defer unlock()
	if isDir(target) { // built while we waited
		return target, nil
	}
	return target, r.run(ctx, progress, target)
}

// run builds into a temporary neighbour of target and renames it, so that a
// folder under its final name is always complete. The caller holds the lock, so
// a neighbour that is there already is the rest of a killed build.
func (r recipe) run(ctx context.Context, progress io.Writer, target string) error {
	into := target + ".building"
	if err := os.RemoveAll(into); err != nil {
		return fmt.Errorf("removing an unfinished build: %w", err)
	}
	if err := os.Mkdir(into, 0o755); err != nil {
		return fmt.Errorf("making a build folder: %w", err)
	}
	defer os.RemoveAll(into) // nothing is left of it after the rename
	start := time.Now()
	fmt.Fprintf(progress, "building %s once, into %s\n", r.name, target)
	compiler := r.compiler
	if compiler == nil {
		compiler = NewCompiler(progress)
		if err := compiler.Plan(ctx, r.compilations...); err != nil {
			return fmt.Errorf("building %s: %w", r.name, err)
		}
		compiler.Announce(r.compilations...)
	}
	if err := r.build(ctx, compiler, into); err != nil {
		return fmt.Errorf("building %s: %w", r.name, err)
	}
	if err := os.Rename(into, target); err != nil {
		return fmt.Errorf("putting the build in place: %w", err)
	}
	fmt.Fprintf(progress, "built %s in %s\n", r.name, time.Since(start).Round(time.Second))
	return nil
}

// key names the result by everything that it depends on.
func (r recipe) key(ctx context.Context) (string, error) {
	goVersion, err := goOutput(ctx, filepath.Dir(r.sources[0]), "env", "GOVERSION")
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	fmt.Fprintln(sum, goVersion, runtime.GOOS, runtime.GOARCH, r.flags)
	for _, source := range r.sources {
		if err := hashTree(sum, source); err != nil {
			return "", fmt.Errorf("hashing %s: %w", source, err)
		}
	}
	return hex.EncodeToString(sum.Sum(nil))[:20], nil
}

func hashTree(sum hash.Hash, source string) error {
	return filepath.WalkDir(source, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(filepath.Dir(source), path)
		if err != nil {
			return err
		}
		fmt.Fprintf(sum, "%s %d\n", filepath.ToSlash(name), len(content))
		sum.Write(content)
		return nil
	})
}

// goOutput runs the go command of the machine in moduleDir, alone with that
// module: no workspace, no cgo.
func goOutput(ctx context.Context, moduleDir string, args ...string) (string, error) {
	var out bytes.Buffer
	err := NewCompiler(io.Discard).run(ctx, &Compilation{Dir: moduleDir}, &out, args)
	return strings.TrimSpace(out.String()), err
}

// projectRoot finds the folder of this project's go.mod, from the place of this
// source file or, when the binary carries no usable path (-trimpath), from the
// current folder upwards.
func projectRoot() (string, error) {
	var from []string
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		from = append(from, filepath.Dir(file))
	}
	if cwd, err := os.Getwd(); err == nil {
		from = append(from, cwd)
	}
	for _, dir := range from {
		for ; ; dir = filepath.Dir(dir) {
			content, err := os.ReadFile(filepath.Join(dir, "go.mod"))
			if err == nil && declaresModule(content) {
				return dir, nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", fmt.Errorf("no go.mod of module %s above %s; run this inside the project or set %s",
		modulePath, strings.Join(from, " or "), AssetsVariable)
}

func declaresModule(goMod []byte) bool {
	for line := range strings.Lines(string(goMod)) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == "module" {
			return fields[1] == modulePath
		}
	}
	return false
}

func checkAssets(dir string) error {
	for _, name := range append([]string{Kwok}, controlPlaneRoles...) {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("%s names a folder without %s: %w", AssetsVariable, name, err)
		}
	}
	return nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// lockFile takes an exclusive lock that ends with the process at the latest. It calls onWait once if another process
// holds it. The file stays: removing it would let two processes lock two files of one name.
func lockFile(ctx context.Context, path string, onWait func()) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the lock: %w", err)
	}
	for waited := false; ; waited = true {
		err := TryLock(file)
		if err == nil {
			return func() { _ = file.Close() }, nil // closing releases the lock
		}
		if !errors.Is(err, ErrLocked) {
			_ = file.Close()
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		if !waited {
			onWait()
		}
		select {
		case <-ctx.Done():
			_ = file.Close()
			return nil, ctx.Err()
		case <-time.After(lockPollInterval):
		}
	}
}

// everyInterval calls f again and again until the returned function is called;
// f does not run after that.
func everyInterval(interval time.Duration, f func()) (stop func()) {
	ticker := time.NewTicker(interval)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-ticker.C:
				f()
			}
		}
	}()
	return func() {
		ticker.Stop()
		close(quit)
		<-done
	}
}
