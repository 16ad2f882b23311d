package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
	"sigs.k8s.io/yaml"
)

const projectRoot = "../.."

// published is a release with all that can be said, in a folder in which the archives of the plugin are empty; local
// is one with the defaults.
var published, local release

func TestMain(m *testing.M) {
	var cleanups []func()
	complete := func(args ...string) release {
		out, err := os.MkdirTemp("", "kuperator-release-test-")
		cleanups = append(cleanups, func() { os.RemoveAll(out) })
		for _, archive := range []string{"kubectl-kuperator_linux_amd64.tar.gz", "kubectl-kuperator_windows_amd64.zip"} {
			err = errors.Join(err, os.WriteFile(filepath.Join(out, archive), nil, 0o600))
		}
		r, parseErr := parse(append([]string{"-root", projectRoot, "-out", out}, args...))
		if err = errors.Join(err, parseErr); err == nil {
			err = r.make()
		}
		if err != nil {
			panic(err)
		}
		return r
	}
	published = complete("-version", "v9.8.7", "-repository", "registry.example.com/kuperator",
		"-docs", "https://docs.example.com/kuperator/", "-download", "https://downloads.example.com/v9.8.7/")
	local = complete()
	code := m.Run()
	for _, clean := range cleanups {
		clean()
	}
	os.Exit(code)
}

func (r release) read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(r.out, name))
	require.NoError(t, err)
	return string(content)
}

var imageLine = regexp.MustCompile(`(?m)^ +image: (.*)$`)

func TestEveryOverlayPullsTheImagesOfTheRelease(t *testing.T) {
	r := published
	overlays, err := os.ReadDir(filepath.Join(projectRoot, "deploy", "overlays"))
	require.NoError(t, err)
	require.NotEmpty(t, overlays)
	for _, overlay := range overlays {
		found := imageLine.FindAllStringSubmatch(r.read(t, "install-"+overlay.Name()+".yaml"), -1)
		assert.NotEmpty(t, found, overlay.Name())
		for _, image := range found {
			assert.Regexp(t, `^registry\.example\.com/kuperator/[a-z-]+:v9\.8\.7$`, image[1], overlay.Name())
		}
	}
	assert.Contains(t, r.read(t, "prerequisites.yaml"), "kind: CustomResourceDefinition")
}

func TestWithoutARepositoryImagesAreCalledAsTheirArchives(t *testing.T) {
	r := local
	assert.Contains(t, r.read(t, "install-full.yaml"), "image: kuperator/collaset-controller:v")
	assert.NotContains(t, r.read(t, "README.md"), "make images PUSH=", "no push to a registry that was not named")
}

func TestLinksLeadToThePublishedPages(t *testing.T) {
	r := published
	const want = "https://docs.example.com/kuperator/operations/runbooks"
	alerts := r.read(t, "prometheus-operator.yaml")
	assert.Equal(t, strings.Count(alerts, "runbook_url: "), strings.Count(alerts, "runbook_url: "+want+"/Kuperator"))
	assert.Contains(t, alerts, "runbook_url: ")
	chart := r.chartFiles(t)
	assert.Contains(t, chart["kuperator/values.yaml"], "\n  runbooks: "+want+"\n")
	assert.Contains(t, chart["kuperator/Chart.yaml"], "\nhome: https://docs.example.com/kuperator\n")
}

// chartFiles are the files of the packed chart.
func (r release) chartFiles(t *testing.T) map[string]string {
	t.Helper()
	packed, err := os.Open(filepath.Join(r.out, r.chartFile()))
	require.NoError(t, err)
	defer packed.Close()
	plain, err := gzip.NewReader(packed)
	require.NoError(t, err)
	files := map[string]string{}
	for in := tar.NewReader(plain); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		content, err := io.ReadAll(in)
		require.NoError(t, err)
		files[header.Name] = string(content)
	}
}

func TestTheChartHasTheVersionAndTheRepository(t *testing.T) {
	r := published
	require.Equal(t, "kuperator-9.8.7.tgz", r.chartFile())
	files := r.chartFiles(t)
	assert.Contains(t, files["kuperator/Chart.yaml"], "\nversion: 9.8.7\nappVersion: v9.8.7\n")
	assert.Contains(t, files["kuperator/values.yaml"], "\n  repository: registry.example.com/kuperator\n")
	assert.Contains(t, files, "kuperator/templates/collaset-controller.yaml")
	assert.Contains(t, files, "kuperator/variants/ha.yaml")
}

func TestKrewFindsAnArchiveForEachPlatform(t *testing.T) {
	r := published
	var plugin krewPlugin
	require.NoError(t, yaml.UnmarshalStrict([]byte(r.read(t, "kuperator.yaml")), &plugin))
	assert.Equal(t, "v9.8.7", plugin.Spec.Version)
	require.Len(t, plugin.Spec.Platforms, 2)
	const empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" // of no bytes
	assert.Equal(t, krewPlatform{
		Selector: krewSelector{MatchLabels: map[string]string{"os": "windows", "arch": "amd64"}},
		URI:      "https://downloads.example.com/v9.8.7/kubectl-kuperator_windows_amd64.zip",
		Sha256:   empty, Bin: "kubectl-kuperator.exe",
	}, plugin.Spec.Platforms[1])
}

func TestChecksumsAreOfAllFiles(t *testing.T) {
	published.checkSums(t)
	local.checkSums(t)
	assert.NotEqual(t, published.read(t, sums), local.read(t, sums))
}

// checkSums compares SHA256SUMS with the files.
func (r release) checkSums(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(r.out)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(r.read(t, sums)), "\n")
	require.Len(t, lines, len(entries)-1)
	for _, line := range lines {
		want, name, ok := strings.Cut(line, "  ")
		require.True(t, ok, line)
		sum, err := r.sum(name)
		require.NoError(t, err)
		assert.Equal(t, want, sum, name)
	}
}

// TestEditorsKnowManifests validates the example manifests as an editor does.
func TestEditorsKnowManifests(t *testing.T) {
	r := published
	validated := 0
	for _, pattern := range []string{"examples/*/*.yaml", "examples/*/*/*.yaml"} {
		paths, err := filepath.Glob(filepath.Join(projectRoot, pattern))
		require.NoError(t, err)
		for _, path := range paths {
			content, err := os.ReadFile(path)
			require.NoError(t, err)
			for document := range strings.SplitSeq(string(content), "\n---\n") {
				var object map[string]any
				require.NoError(t, yaml.Unmarshal([]byte(document), &object), path)
				if object["apiVersion"] != "apps.kusionstack.io/v1alpha1" {
					continue
				}
				assert.NoError(t, r.validate(t, object), path)
				validated++
				object["spec"].(map[string]any)["misspelt"] = true
				assert.Error(t, r.validate(t, object), "%s with a field that is misspelt", path)
			}
		}
	}
	require.Greater(t, validated, 5)
}

// validate holds an object against the schema of its kind.
func (r release) validate(t *testing.T, object map[string]any) error {
	t.Helper()
	var schema spec.Schema
	text := r.read(t, strings.ToLower(object["kind"].(string))+"_v1alpha1.json")
	require.NoError(t, json.Unmarshal([]byte(text), &schema))
	return validate.NewSchemaValidator(&schema, nil, "", strfmt.Default).Validate(object).AsError()
}

func TestOnlyWhatHelmAndKrewTakeIsAVersion(t *testing.T) {
	for _, version := range []string{"0.1.0", "v1", "main", "v1.2.3-4-gabc_def"} {
		_, err := parse([]string{"-root", projectRoot, "-version", version})
		assert.Error(t, err, version)
	}
	r, err := parse([]string{"-root", projectRoot})
	require.NoError(t, err)
	assert.Equal(t, "v0.1.0", r.version, "what deploy/ installs")
}
