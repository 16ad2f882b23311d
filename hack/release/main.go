// Command release completes the folder in which hack/images has put the images, the plugin and their SBOMs: manifests
// of each overlay, the Helm chart, schemas for editors, the manifest of krew, checksums and a page that tells how to
// publish and install it all. See docs/operations/releasing.md.
//
// The same sources, Go version and flags give the same bytes, on whatever machine and in whatever folder.
package main

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"kusionstack.io/kuperator/internal/monitoring"
)

// release is what the command line asks for.
type release struct {
	root string // folder of the project
	out  string // folder with what hack/images made
	// version is that of all components, the chart and the plugin, such as v0.1.0.
	version string
	// repository is where images are pulled from; a component's name is added. unpublished is no registry: images of that
	// name are loaded onto nodes.
	repository string
	// docs is the URL of the folder docs, "" if the pages are on no server.
	docs string
	// download is the URL below which the files of the folder are published, "" if they are not.
	download string
}

func main() {
	r, err := parse(os.Args[1:])
	if err == nil {
		err = r.make()
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// unpublished is what the manifests of deploy/ call the repository.
const unpublished = "kuperator"

// semantic is a version as Helm and krew want it, with the v that images have.
var semantic = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)

func parse(args []string) (release, error) {
	var r release
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.StringVar(&r.root, "root", ".", "folder of the project")
	flags.StringVar(&r.out, "out", "bin/release", "folder of the release")
	flags.StringVar(&r.version, "version", "", "version and tag, such as v0.1.0 (default: the tag that deploy/ installs)")
	flags.StringVar(&r.repository, "repository", unpublished,
		"where images are pulled from, for example registry.example.com/kuperator; a component's name is added")
	flags.StringVar(&r.docs, "docs", "", "URL of the folder docs, for links to pages (default: paths of the sources)")
	flags.StringVar(&r.download, "download", "", "URL below which the files are published, where krew gets the plugin")
	if err := flags.Parse(args); err != nil {
		return r, err
	}
	if flags.NArg() > 0 {
		return r, fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	r.docs, r.download = strings.TrimRight(r.docs, "/"), strings.TrimRight(r.download, "/")
	if r.version == "" {
		var err error
		if r.version, err = r.installedVersion(); err != nil {
			return r, err
		}
	}
	if !semantic.MatchString(r.version) {
		return r, fmt.Errorf("version %q is not like v1.2.3, as Helm and krew want it", r.version)
	}
	return r, nil
}

// runbooks is the URL below which alerts find their runbooks.
func (r release) runbooks() string {
	if r.docs == "" {
		return monitoring.RunbookBase
	}
	return r.docs + strings.TrimPrefix(monitoring.RunbookBase, "docs")
}

// make writes everything; the checksums last.
func (r release) make() error {
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	for _, step := range []func() error{r.manifests, r.chart, r.schemas, r.krew, r.pages, r.checksums} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (r release) write(name string, content []byte) error {
	return os.WriteFile(filepath.Join(r.out, name), content, 0o644)
}

// pages are the licence and what tells how to publish and install the folder.
func (r release) pages() error {
	licence, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return err
	}
	return errors.Join(r.write("LICENSE", licence), r.write("README.md", r.readme()))
}

const sums = "SHA256SUMS"

// checksums are of all files, as sha256sum writes and checks them.
func (r release) checksums() error {
	entries, err := os.ReadDir(r.out) // sorted by name
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, entry := range entries {
		if entry.Name() == sums {
			continue
		}
		sum, err := r.sum(entry.Name())
		if err != nil {
			return err
		}
		fmt.Fprintf(&list, "%s  %s\n", sum, entry.Name())
	}
	return r.write(sums, []byte(list.String()))
}

func (r release) sum(name string) (string, error) {
	content, err := os.ReadFile(filepath.Join(r.out, name))
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sha256.Sum256(content)), nil
}
