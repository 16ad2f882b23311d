// Command images builds a container image for each component of cmd/, for several platforms, without a container
// engine, and a bill of materials (SBOM) for each; it pushes them if told to. It packs kubectl kuperator as well, for a
// release. See docs/operations/supply-chain.md and releasing.md.
//
// The same sources, Go version and flags give the same digests, on whatever machine and in whatever folder.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// job is what the command line asks for.
type job struct {
	root       string // folder of the project's go.mod
	out        string // folder for what is made
	components []string
	platforms  []v1.Platform
	version    string    // linked into the programs; the tag of the images
	revision   string    // commit, for a label; may be empty
	created    time.Time // of the images; what they hold is dated 1970
	tags       string    // of the build
	repository string    // prefix of the names by which the archives are loaded
	push       string    // repository prefix; empty pushes nothing
	plugin     bool      // whether to pack kubectl kuperator too
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	j, err := parse(os.Args[1:], os.Getenv("SOURCE_DATE_EPOCH"))
	if err == nil {
		err = j.run(ctx, os.Stdout)
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "images:", err)
		stop()
		os.Exit(1)
	}
}

// parse reads the command line. epoch is a time in seconds since 1970 as text, the convention of reproducible builds;
// empty is 1970.
func parse(args []string, epoch string) (job, error) {
	j := job{created: time.Unix(0, 0).UTC()}
	var components, platforms string
	flags := flag.NewFlagSet("images", flag.ContinueOnError)
	flags.StringVar(&j.root, "root", ".", "folder of the project")
	flags.StringVar(&j.out, "out", "bin/images", "folder for the images, as OCI layouts in tar files, and their SBOMs")
	flags.StringVar(&components, "components", "", "comma-separated programs of cmd/ (default: all that deploy/ installs)")
	flags.StringVar(&platforms, "platforms", "linux/amd64,linux/arm64", "comma-separated platforms")
	flags.StringVar(&j.version, "version", "", "version and tag (default: the tag that deploy/ installs)")
	flags.StringVar(&j.revision, "revision", "", "commit that the sources are of, for a label")
	flags.StringVar(&j.tags, "tags", "", "comma-separated build tags, for example nocloud")
	flags.StringVar(&j.repository, "repository", "kuperator",
		"what the images are called when an archive is loaded; a component's name and the version are added")
	flags.BoolVar(&j.plugin, "plugin", false, "pack kubectl kuperator for each platform too, with its SBOMs")
	flags.StringVar(&j.push, "push", "",
		"registry and repository to push to, for example registry.example.com/kuperator; a component's name is added")
	if err := flags.Parse(args); err != nil {
		return job{}, err
	}
	if flags.NArg() > 0 {
		return job{}, fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	if epoch != "" {
		seconds, err := parseEpoch(epoch)
		if err != nil {
			return job{}, err
		}
		j.created = seconds
	}
	for _, text := range strings.Split(platforms, ",") {
		platform, err := v1.ParsePlatform(text)
		if err != nil {
			return job{}, fmt.Errorf("platform %q: %w", text, err)
		}
		j.platforms = append(j.platforms, *platform)
	}
	return j, j.complete(components)
}

// complete fills what is not said from what deploy/ installs.
func (j *job) complete(components string) error {
	installed, err := installedImages(j.root)
	if err != nil {
		return err
	}
	for component := range installed {
		j.components = append(j.components, component)
	}
	slices.Sort(j.components)
	if components != "" {
		j.components = strings.Split(components, ",")
	}
	if j.version != "" {
		return nil
	}
	for _, component := range j.components {
		tag := installed[component]
		if tag == "" || j.version != "" && tag != j.version {
			return fmt.Errorf("deploy/%s installs %q, others %q: say which one is meant with -version", component,
				tag, j.version)
		}
		j.version = tag
	}
	return nil
}

func (j *job) run(ctx context.Context, progress io.Writer) error {
	if err := os.MkdirAll(j.out, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "kuperator-images-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	var pushed []pinned
	for _, component := range j.components {
		image, err := j.build(ctx, component, work)
		if err != nil {
			return fmt.Errorf("%s: %w", component, err)
		}
		if err := image.save(j.out, j.repository); err != nil {
			return fmt.Errorf("%s: writing it to %s: %w", component, j.out, err)
		}
		digest, err := image.index.Digest()
		if err != nil {
			return err
		}
		fmt.Fprintf(progress, "%s %s\n", filepath.Join(j.out, component+".tar"), digest)
		if j.push == "" {
			continue
		}
		name, err := image.push(ctx, j.push)
		if err != nil {
			return fmt.Errorf("%s: pushing it to %s: %w", component, j.push, err)
		}
		fmt.Fprintf(progress, "pushed %s\n", name)
		pushed = append(pushed, pinned{component: component, repository: j.push + "/" + component, digest: digest.String()})
	}
	if j.plugin {
		if err := j.packPlugin(ctx, work, progress); err != nil {
			return fmt.Errorf("%s: %w", pluginName, err)
		}
	}
	if j.push == "" {
		return nil
	}
	return writePins(filepath.Join(j.out, "kustomization.yaml"), pushed)
}
