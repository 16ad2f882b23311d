package binaries

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhereEnvtestIsLookedFor(t *testing.T) {
	home := t.TempDir()
	for _, folder := range []string{".local/share/kubebuilder-envtest/k8s/1.36.0-linux-amd64",
		".local/share/kubebuilder-envtest/k8s/1.37.0-linux-amd64", "data/kubebuilder-envtest/k8s/1.35.0-linux-amd64",
		"Library/Application Support/io.kubebuilder.envtest/k8s/1.37.0-darwin-arm64"} {
		require.NoError(t, os.MkdirAll(filepath.Join(home, folder), 0o755))
	}
	in := func(paths ...string) (folders []string) {
		for _, path := range paths {
			folders = append(folders, filepath.Join(home, path))
		}
		return append(folders, "/usr/local/kubebuilder/bin")
	}
	environment := map[string]string{"HOME": home}
	look := func(system string) []string {
		return readyMadeFolders(func(name string) string { return environment[name] }, system)
	}
	require.Equal(t, in(".local/share/kubebuilder-envtest/k8s/1.37.0-linux-amd64",
		".local/share/kubebuilder-envtest/k8s/1.36.0-linux-amd64"), look("linux"))
	require.Equal(t, in("Library/Application Support/io.kubebuilder.envtest/k8s/1.37.0-darwin-arm64"), look("darwin"))
	environment["XDG_DATA_HOME"] = filepath.Join(home, "data")
	environment[envtestVariable] = filepath.Join(home, "given")
	require.Equal(t, in("given", "data/kubebuilder-envtest/k8s/1.35.0-linux-amd64"), look("linux"))
}

func TestAFolderIsFoundByItsPrograms(t *testing.T) {
	folder := func(programs ...string) string {
		dir := t.TempDir()
		for _, program := range programs {
			require.NoError(t, os.WriteFile(filepath.Join(dir, program), nil, 0o700))
		}
		return dir
	}
	envtest, half := folder(envtestRoles...), folder(Etcd, Kubectl)
	all, broken := folder(append([]string{Kwok}, controlPlaneRoles...)...), folder(envtestRoles...)
	found := findReadyMade([]string{half, envtest, broken, all, filepath.Join(half, "none")},
		func(program string) (string, error) {
			if filepath.Dir(program) == broken {
				return "", errors.New("exec format error")
			}
			return "Kubernetes v1.37.0\n", nil
		})
	require.Equal(t, []readyMade{
		{dir: envtest, version: "v1.37.0"}, {dir: all, version: "v1.37.0", complete: true},
	}, found)
}

func TestOnlyTheSameMinorVersionIsTakenAndTheScreenTellsWhich(t *testing.T) {
	old, partly := readyMade{dir: "old", version: "v1.36.1"}, readyMade{dir: "partly", version: "v1.37.0"}
	whole := readyMade{dir: "whole", version: "v1.37.2", complete: true}
	for name, tc := range map[string]struct {
		found     []readyMade
		want, say string
	}{
		"none":              {},
		"another version":   {found: []readyMade{old}, say: "not using old: it is Kubernetes v1.36.1"},
		"envtest":           {found: []readyMade{old, partly}, want: "partly", say: "what it lacks is compiled"},
		"everything":        {found: []readyMade{partly, whole}, want: "whole", say: "the control plane (Kubernetes v1.37.2) in whole"},
		"a similar version": {found: []readyMade{{dir: "x", version: "v1.3.7"}}, say: "not using x"},
	} {
		t.Run(name, func(t *testing.T) {
			best, text := choose(tc.found, "1.37")
			if tc.want == "" {
				require.Nil(t, best)
			} else {
				require.Equal(t, tc.want, best.dir)
			}
			require.Contains(t, text, tc.say)
			require.Equal(t, tc.say == "", text == "")
		})
	}
}

func TestWithEnvtestTheRestIsAnotherFolderOfTheCache(t *testing.T) {
	alone, err := controlPlane("")
	require.NoError(t, err)
	beside, err := controlPlaneBeside("", t.TempDir())
	require.NoError(t, err)
	require.Equal(t, []string{"./controllers"}, beside.compilations[0].Packages)
	one, err := alone.key(t.Context())
	require.NoError(t, err)
	other, err := beside.key(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, one, other)
}
