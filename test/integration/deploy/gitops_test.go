package deploy

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// TestArgoCDComponentAddsToTheConfigMap: what Argo CD's own configuration has stays there.
func TestArgoCDComponentAddsToTheConfigMap(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	absolute, err := filepath.Abs(deployDir("gitops", "argo-cd"))
	require.NoError(t, err)
	component, err := filepath.Rel(dir, absolute)
	require.NoError(t, err)
	for name, text := range map[string]string{
		"kustomization.yaml": "namespace: argocd\nresources: [argocd-cm.yaml]\ncomponents: [" + component + "]\n",
		"argocd-cm.yaml":     "{apiVersion: v1, kind: ConfigMap, metadata: {name: argocd-cm}, data: {url: https://argocd.example.com}}\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	objects := render(t, dir)
	require.Len(t, objects, 1)
	config := as[corev1.ConfigMap](t, objects[0])
	require.Equal(t, "https://argocd.example.com", config.Data["url"])
	for _, name := range []string{"health.apps.kusionstack.io_CollaSet", "actions.apps.kusionstack.io_CollaSet",
		"health.apps.kusionstack.io_OperationJob", "health.apps.kusionstack.io_PodDecoration",
		"health.apps.kusionstack.io_PodTransitionRule"} {
		require.Contains(t, config.Data, "resource.customizations."+name)
	}
}
