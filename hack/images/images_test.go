package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/x509"
	"debug/elf"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const projectRoot = "../.."

// whole is true if all images are built, for all platforms: make test-images.
var whole = os.Getenv("KUPERATOR_IMAGES") == "all"

// tiny is a project with one program, which compiles in seconds for any platform.
func tiny(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for path, content := range map[string]string{
		"go.mod":  "module " + modulePath + "\n\ngo 1.26.0\n",
		"LICENSE": "do as you like\n",
		"cmd/tiny/main.go": "package main\n\nimport _ \"" + modulePath +
			"/internal/bootstrap\"\n\nfunc main() {}\n",
		"internal/bootstrap/version.go":                 "package bootstrap\n\nvar version string\n\nfunc init() { println(version) }\n",
		"deploy/tiny/kustomization.yaml":                "images:\n- {name: kuperator/tiny, newTag: v9.8.7}\n",
		"deploy/overlays/everything/kustomization.yaml": "resources: [../../tiny]\n",
	} {
		file := filepath.Join(root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	}
	return root
}

// run runs the command and returns the folder with what it made.
func run(t *testing.T, epoch string, args ...string) string {
	t.Helper()
	out := t.TempDir()
	j, err := parse(append([]string{"-out", out}, args...), epoch)
	require.NoError(t, err)
	require.NoError(t, j.run(t.Context(), io.Discard))
	return out
}

// contents are the files of a folder by name.
func contents(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, entry := range entries {
		files[entry.Name()], err = os.ReadFile(filepath.Join(dir, entry.Name()))
		require.NoError(t, err)
	}
	return files
}

// twoFolders are two with the same sources: the project's, which takes minutes to build, or those of a tiny one.
func twoFolders(t *testing.T) (here, there string) {
	t.Helper()
	if !whole {
		return tiny(t), tiny(t)
	}
	there = t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(there, "cmd"), os.DirFS(filepath.Join(projectRoot, "cmd"))))
	for _, folder := range []string{"api", "internal", "deploy"} {
		require.NoError(t, os.CopyFS(filepath.Join(there, folder), os.DirFS(filepath.Join(projectRoot, folder))))
	}
	for _, file := range []string{"go.mod", "go.sum", "LICENSE"} {
		content, err := os.ReadFile(filepath.Join(projectRoot, file))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(there, file), content, 0o600))
	}
	return projectRoot, there
}

func TestTheSameSourcesGiveTheSameBytesWhereverTheyAre(t *testing.T) {
	root, copied := twoFolders(t)
	here := contents(t, run(t, "1700000000", "-root", root, "-revision", "abc"))
	t.Setenv("GOFLAGS", "-tags=anything") // a developer's own settings
	t.Setenv("TZ", "Asia/Shanghai")
	there := contents(t, run(t, "1700000000", "-root", copied, "-revision", "abc"))
	want := 3 // an archive and two SBOMs
	if whole {
		want = 7 * 3
	}
	require.Len(t, here, want)
	require.Len(t, there, want)
	for file := range here {
		assert.True(t, bytes.Equal(here[file], there[file]), "%s differs", file)
	}

	other := contents(t, run(t, "", "-root", root, "-version", "v0.0.1-other"))
	for file := range here {
		assert.False(t, bytes.Equal(here[file], other[file]), "%s of another version is the same: nothing was compared", file)
	}
}

// unpack opens an OCI layout in a tar file.
func unpack(t *testing.T, archive string) (layout.Path, v1.Descriptor, v1.ImageIndex) {
	t.Helper()
	packed, err := os.Open(archive)
	require.NoError(t, err)
	defer packed.Close()
	dir := t.TempDir()
	in := tar.NewReader(packed)
	for {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(header.Name)), 0o755))
		content, err := io.ReadAll(in)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, header.Name), content, 0o600))
	}
	path, err := layout.FromPath(dir)
	require.NoError(t, err)
	outer, err := path.ImageIndex()
	require.NoError(t, err)
	manifest, err := outer.IndexManifest()
	require.NoError(t, err)
	require.Len(t, manifest.Manifests, 1, "tools take an archive with one image without asking which")
	index, err := outer.ImageIndex(manifest.Manifests[0].Digest)
	require.NoError(t, err)
	return path, manifest.Manifests[0], index
}

// filesOf are those of an image's layers, by name.
func filesOf(t *testing.T, image v1.Image) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	layers := mutate.Extract(image)
	defer layers.Close()
	in := tar.NewReader(layers)
	for {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		assert.Zero(t, header.Uid+header.Gid, "%s does not belong to root", header.Name)
		assert.Zero(t, header.Mode&0o022, "%s can be written by others", header.Name)
		if header.Typeflag == tar.TypeReg {
			files[header.Name], err = io.ReadAll(in)
			require.NoError(t, err)
		}
	}
}

func TestAnImageHoldsAProgramForEachPlatformAndLittleElse(t *testing.T) {
	out := run(t, "1700000000", "-root", tiny(t), "-revision", "abc")
	_, named, index := unpack(t, filepath.Join(out, "tiny.tar"))
	assert.Equal(t, "docker.io/kuperator/tiny:v9.8.7", named.Annotations["io.containerd.image.name"])
	assert.Equal(t, "v9.8.7", named.Annotations["org.opencontainers.image.ref.name"])
	require.NoError(t, validate.Index(index))
	manifest, err := index.IndexManifest()
	require.NoError(t, err)
	require.Len(t, manifest.Manifests, 2)

	machines := map[string]elf.Machine{"linux/amd64": elf.EM_X86_64, "linux/arm64": elf.EM_AARCH64}
	for _, descriptor := range manifest.Manifests {
		image, err := index.Image(descriptor.Digest)
		require.NoError(t, err)
		config, err := image.ConfigFile()
		require.NoError(t, err)
		platform := config.Platform().String()
		assert.Equal(t, descriptor.Platform.String(), platform)
		assert.Equal(t, "65532:65532", config.Config.User)
		assert.Equal(t, []string{"/tiny"}, config.Config.Entrypoint)
		assert.Equal(t, map[string]string{
			"org.opencontainers.image.title":    "tiny",
			"org.opencontainers.image.version":  "v9.8.7",
			"org.opencontainers.image.revision": "abc",
			"org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.created":  "2023-11-14T22:13:20Z",
		}, config.Config.Labels)
		own, err := image.Manifest()
		require.NoError(t, err)
		assert.Equal(t, config.Config.Labels, own.Annotations)

		files := filesOf(t, image)
		program, err := elf.NewFile(bytes.NewReader(files["tiny"]))
		require.NoError(t, err)
		assert.Equal(t, machines[platform], program.Machine)
		delete(machines, platform)
		libraries, err := program.ImportedLibraries()
		require.NoError(t, err)
		assert.Empty(t, libraries, "nothing but the program itself is in the image")
		assertAuthorities(t, files["etc/ssl/certs/ca-certificates.crt"])
		assert.Contains(t, string(files["etc/passwd"]), ":65532:65532:")
		names := []string{}
		for name := range files {
			names = append(names, name)
		}
		assert.ElementsMatch(t, []string{"tiny", "LICENSE", "etc/passwd", "etc/group", "etc/ssl/certs/ca-certificates.crt"},
			names)
	}
	assert.Empty(t, machines, "platforms without an image")
}

func assertAuthorities(t *testing.T, text []byte) {
	t.Helper()
	count := 0
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		certificate, err := x509.ParseCertificate(block.Bytes)
		require.NoError(t, err)
		assert.True(t, certificate.IsCA)
		count++
	}
	assert.Greater(t, count, 100, "authorities to trust")
}

// modulesOf are the modules that the go command says a program was made of, replaced ones by what took their place.
func modulesOf(t *testing.T, program string) []string {
	t.Helper()
	text, err := exec.CommandContext(t.Context(), "go", "version", "-m", program).Output()
	require.NoError(t, err)
	var modules []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) >= 3 && fields[0] == "dep":
			modules = append(modules, fields[1]+"@"+fields[2])
		case len(fields) >= 3 && fields[0] == "=>":
			modules[len(modules)-1] = fields[1] + "@" + fields[2]
		}
	}
	return modules
}

// assertDescribes compares an SBOM with what the go command says about the program.
func assertDescribes(t *testing.T, text []byte, program string, besides int) {
	t.Helper()
	modules := modulesOf(t, program)
	require.Greater(t, len(modules), 10)
	var bom cdx.BOM
	require.NoError(t, cdx.NewBOMDecoder(bytes.NewReader(text), cdx.BOMFileFormatJSON).Decode(&bom))
	var named []string
	for _, part := range *bom.Components {
		named = append(named, part.Name+"@"+part.Version)
		assert.True(t, strings.HasPrefix(part.PackageURL, "pkg:golang/"+part.Name+"@"), part.PackageURL)
		assert.True(t, part.Name == "std" || part.Hashes != nil, "%s has no hash", part.Name)
	}
	assert.Contains(t, named, "std@"+strings.TrimPrefix(runtime.Version(), "go"))
	for _, module := range modules {
		assert.Contains(t, named, module)
	}
	assert.Len(t, named, len(modules)+besides)
	assert.Len(t, *(*bom.Dependencies)[0].Dependencies, len(named))
	assert.Equal(t, filepath.Base(program), bom.Metadata.Component.Name)
}

func TestTheSBOMNamesEveryModuleOfAProgram(t *testing.T) {
	program, err := os.Executable() // a program with many modules that is there already
	require.NoError(t, err)
	j, err := parse([]string{"-root", tiny(t)}, "")
	require.NoError(t, err)
	text, err := j.sbom(program, filepath.Base(program))
	require.NoError(t, err)
	assertDescribes(t, text, program, 1) // Go's own library; the certificate authorities are in this program
}

func TestTheSBOMsOfAllImagesNameEveryModule(t *testing.T) {
	if !whole {
		t.Skip("make test-images builds all images")
	}
	out := run(t, "1700000000", "-root", projectRoot)
	archives, err := filepath.Glob(filepath.Join(out, "*.tar"))
	require.NoError(t, err)
	installed, err := filepath.Glob(filepath.Join(projectRoot, "deploy", "*", "deployment.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, installed)
	require.Len(t, archives, len(installed), "an image for each component")
	for _, archive := range archives {
		component := strings.TrimSuffix(filepath.Base(archive), ".tar")
		_, _, index := unpack(t, archive)
		manifest, err := index.IndexManifest()
		require.NoError(t, err)
		require.Len(t, manifest.Manifests, 2)
		for _, descriptor := range manifest.Manifests {
			image, err := index.Image(descriptor.Digest)
			require.NoError(t, err)
			program := filepath.Join(t.TempDir(), component)
			require.NoError(t, os.WriteFile(program, filesOf(t, image)[component], 0o600))
			text, err := os.ReadFile(filepath.Join(out, component+"."+fileName(*descriptor.Platform)+".cdx.json"))
			require.NoError(t, err)
			assertDescribes(t, text, program, 2) // Go's own library and the certificate authorities
		}
	}
}

func TestPushedImagesCanBePulledAndBringTheirSBOM(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0)),
		registry.WithReferrersSupport(true)))
	t.Cleanup(server.Close)
	prefix := strings.TrimPrefix(server.URL, "http://") + "/team"
	out := run(t, "", "-root", tiny(t), "-push", prefix)

	_, named, index := unpack(t, filepath.Join(out, "tiny.tar"))
	tag, err := name.NewTag(prefix + "/tiny:v9.8.7")
	require.NoError(t, err)
	pulled, err := remote.Index(tag)
	require.NoError(t, err)
	digest, err := pulled.Digest()
	require.NoError(t, err)
	assert.Equal(t, named.Digest, digest, "what is pushed is what the archive holds")
	require.NoError(t, validate.Index(pulled))

	manifest, err := index.IndexManifest()
	require.NoError(t, err)
	for _, descriptor := range manifest.Manifests {
		image, err := remote.Image(tag, remote.WithPlatform(*descriptor.Platform))
		require.NoError(t, err)
		digest, err := image.Digest()
		require.NoError(t, err)
		assert.Equal(t, descriptor.Digest, digest)

		referrers, err := remote.Referrers(tag.Context().Digest(digest.String()))
		require.NoError(t, err)
		list, err := referrers.IndexManifest()
		require.NoError(t, err)
		require.Len(t, list.Manifests, 1)
		assert.Equal(t, sbomMediaType, list.Manifests[0].ArtifactType)
		attached, err := remote.Image(tag.Context().Digest(list.Manifests[0].Digest.String()))
		require.NoError(t, err)
		layers, err := attached.Layers()
		require.NoError(t, err)
		require.Len(t, layers, 1)
		content, err := layers[0].Compressed()
		require.NoError(t, err)
		text, err := io.ReadAll(content)
		require.NoError(t, err)
		want, err := os.ReadFile(filepath.Join(out, "tiny."+fileName(*descriptor.Platform)+".cdx.json"))
		require.NoError(t, err)
		assert.JSONEq(t, string(want), string(text))
	}

	text, err := os.ReadFile(filepath.Join(out, "kustomization.yaml"))
	require.NoError(t, err)
	var pins kustomization
	require.NoError(t, yaml.UnmarshalStrict(text, &pins))
	assert.Equal(t, kustomization{APIVersion: "kustomize.config.k8s.io/v1alpha1", Kind: "Component",
		Images: []replaceImage{{Name: "kuperator/tiny", NewName: prefix + "/tiny", Digest: named.Digest.String()}}}, pins)
}

func TestARefusedPushIsAnError(t *testing.T) {
	server := httptest.NewServer(nil) // no registry
	t.Cleanup(server.Close)
	j, err := parse([]string{"-root", tiny(t), "-out", t.TempDir(), "-push",
		strings.TrimPrefix(server.URL, "http://") + "/team"}, "")
	require.NoError(t, err)
	err = j.run(t.Context(), io.Discard)
	require.ErrorContains(t, err, "tiny: pushing it to")
	assert.NoFileExists(t, filepath.Join(j.out, "kustomization.yaml"), "nothing was pushed, so nothing can be pinned")
}

func TestImagesAreThoseThatDeployInstalls(t *testing.T) {
	j, err := parse([]string{"-root", projectRoot}, "")
	require.NoError(t, err)
	assert.Equal(t, []string{"collaset-controller", "lifecycle-controller", "operationjob-controller",
		"poddecoration-controller", "podtransitionrule-controller", "resourceconsist-controller", "webhook-server"},
		j.components)
	assert.Regexp(t, `^v\d+\.\d+\.\d+`, j.version)
	for _, component := range j.components {
		assert.DirExists(t, filepath.Join(projectRoot, "cmd", component))
		text, err := os.ReadFile(filepath.Join(projectRoot, "deploy", component, "deployment.yaml"))
		require.NoError(t, err)
		var deployment struct {
			Spec struct {
				Template struct {
					Spec struct {
						SecurityContext struct{ RunAsUser int }
						Containers      []struct{ Image string }
					}
				}
			}
		}
		asJSON, err := yaml.YAMLToJSON(text)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(asJSON, &deployment))
		pod := deployment.Spec.Template.Spec
		require.Len(t, pod.Containers, 1)
		assert.Equal(t, imagePrefix+component, pod.Containers[0].Image)
		assert.Equal(t, 65532, pod.SecurityContext.RunAsUser)
	}
}

func TestMistakesOnTheCommandLine(t *testing.T) {
	root := tiny(t)
	for name, tc := range map[string]struct {
		args  []string
		epoch string
		want  string
	}{
		"a folder that is no project": {args: []string{"-root", t.TempDir()}, want: "is -root the folder of the project"},
		"an unknown argument":         {args: []string{"-root", root, "all"}, want: `unknown argument "all"`},
		"a component without a version": {args: []string{"-root", root, "-components", "other"},
			want: "say which one is meant with -version"},
		"a time that is not a number":    {args: []string{"-root", root}, epoch: "yesterday", want: "SOURCE_DATE_EPOCH"},
		"a platform with too many parts": {args: []string{"-root", root, "-platforms", "a/b/c/d"}, want: "platform"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(tc.args, tc.epoch)
			require.ErrorContains(t, err, tc.want)
		})
	}
	j, err := parse([]string{"-root", root}, "")
	require.NoError(t, err)
	assert.True(t, slices.Equal([]string{"tiny"}, j.components) && j.version == "v9.8.7" && j.created.Unix() == 0)
}

// Nothing here can run a Dockerfile, so what can be read of it is compared.
func TestTheDockerfileSaysTheSame(t *testing.T) {
	j, err := parse([]string{"-root", projectRoot}, "")
	require.NoError(t, err)
	content, err := os.ReadFile(filepath.Join(projectRoot, "Dockerfile"))
	require.NoError(t, err)
	text := string(content)
	assert.Equal(t, 2, strings.Count(text, "ARG VERSION="+j.version+"\n"),
		"the version that deploy/ installs, in both stages")
	assert.Contains(t, text, "\nUSER 65532:65532\n")
	assert.Contains(t, text, ` -ldflags "-s -w -X `)
	goMod, err := os.ReadFile(filepath.Join(projectRoot, "go.mod"))
	require.NoError(t, err)
	assert.Contains(t, string(goMod), "\ngo "+regexp.MustCompile(`golang:([0-9.]+)`).FindStringSubmatch(text)[1])
	ignore, err := os.ReadFile(filepath.Join(projectRoot, ".dockerignore"))
	require.NoError(t, err)
	for _, copied := range regexp.MustCompile(`(?m)^COPY ([^-].*) \S+$`).FindAllStringSubmatch(text, -1) {
		for _, source := range strings.Fields(copied[1]) {
			_, err := os.Stat(filepath.Join(projectRoot, source))
			require.NoError(t, err)
			assert.Contains(t, string(ignore), "!"+source+"\n", "else there is nothing to copy")
		}
	}
}

func TestThePluginIsPackedForEachPlatform(t *testing.T) {
	root := tiny(t)
	for path, content := range map[string]string{
		"main.go":        "package main\n\nimport _ \"" + modulePath + "/internal/plugin\"\n\nfunc main() {}\n",
		completionScript: "complete me\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, "cmd", pluginName), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, "cmd", pluginName, path), []byte(content), 0o600))
	}
	require.NoError(t, os.MkdirAll(filepath.Join(root, "internal", "plugin"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "internal", "plugin", "version.go"),
		[]byte("package plugin\n\nvar version string\n\nfunc init() { println(version) }\n"), 0o600))
	out := run(t, "1700000000", "-root", root, "-plugin")

	packed, err := os.Open(filepath.Join(out, pluginName+"_linux_"+runtime.GOARCH+".tar.gz"))
	require.NoError(t, err)
	defer packed.Close()
	plain, err := gzip.NewReader(packed)
	require.NoError(t, err)
	files := map[string][]byte{}
	for in := tar.NewReader(plain); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if header.Name == pluginName {
			assert.EqualValues(t, 0o755, header.Mode)
		}
		files[header.Name], err = io.ReadAll(in)
		require.NoError(t, err)
	}
	require.Len(t, files, 3)
	assert.Equal(t, "do as you like\n", string(files["LICENSE"]))
	assert.Equal(t, "complete me\n", string(files[completionScript]))
	assert.Contains(t, string(files[pluginName]), "v9.8.7", "the version is linked in")

	for _, name := range []string{"linux_arm64.tar.gz", "darwin_amd64.tar.gz", "darwin_arm64.tar.gz"} {
		assert.FileExists(t, filepath.Join(out, pluginName+"_"+name))
	}
	windows, err := zip.OpenReader(filepath.Join(out, pluginName+"_windows_amd64.zip"))
	require.NoError(t, err)
	defer windows.Close()
	require.Len(t, windows.File, 2)
	assert.Equal(t, pluginName+".exe", windows.File[1].Name)

	var bom cdx.BOM
	text, err := os.ReadFile(filepath.Join(out, pluginName+".windows-amd64.cdx.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &bom))
	require.NotNil(t, bom.Components)
	assert.NotContains(t, string(text), authoritiesModule, "these are in images only")
}

func TestAnArchiveIsLoadedByTheNameThatManifestsPull(t *testing.T) {
	out := run(t, "1700000000", "-root", tiny(t), "-repository", "registry.example.com:5000/team/kuperator")
	_, named, _ := unpack(t, filepath.Join(out, "tiny.tar"))
	assert.Equal(t, "registry.example.com:5000/team/kuperator/tiny:v9.8.7", named.Annotations["io.containerd.image.name"])
}
