package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/insight"
	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/nightly"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// TestPluginKnowsDecorations: what one would do, what it waits for, and what its Pods wait for.
func TestPluginKnowsDecorations(t *testing.T) {
	nightly.Only(t, pluginGuard)
	w := together(t)
	ns := w.namespace(t)
	w.create(t, workload.CollaSet(ns, "web", image1, 3))
	w.waitServing(t, ns, "web", 3, image1)
	manifest := func(image string, partition int) string {
		path := filepath.Join(t.TempDir(), "proxy.yaml")
		require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `apiVersion: apps.kusionstack.io/v1alpha1
kind: PodDecoration
metadata: {name: proxy, namespace: %s}
spec:
  selector: {matchLabels: {app: web}}
  template: {containers: [{name: proxy, image: %q}]}
  updateStrategy: {rollingUpdate: {partition: %d}}
`, ns, image, partition), 0o600))
		return path
	}
	type planned struct {
		Plans []struct {
			PodDecoration insight.Ref
			New           bool
			Ways          map[string]int
			Fields        []string
			Pods          []struct {
				Name  string
				Order int
			}
		}
	}
	plan := func(args ...string) planned {
		var p planned
		require.NoError(t, json.Unmarshal([]byte(w.does(t, ns, append([]string{"plan", "-o", "json"}, args...)...)), &p))
		require.Len(t, p.Plans, 1)
		require.Equal(t, "proxy", p.Plans[0].PodDecoration.Name)
		return p
	}
	waitUpdated := func(n int) {
		t.Helper()
		await.Nil(t, fmt.Sprintf("%d Pods to have the present template", n), func() error {
			var fleet insight.Fleet
			out := w.does(t, ns, "status", "poddecoration/proxy", "-o", "json")
			require.NoError(t, json.Unmarshal([]byte(out), &fleet))
			if d := fleet.Decorations[0]; len(d.Reasons) > 0 || int(d.Available) != n || int(d.Updated) != n {
				return fmt.Errorf("%+v", d)
			}
			return nil
		})
	}

	created := plan("-f", manifest("proxy:1", 0)).Plans[0]
	require.True(t, created.New)
	require.Equal(t, map[string]int{"recreate": 3}, created.Ways)
	require.Equal(t, []string{"spec.containers"}, created.Fields)
	w.kubectl(t, ns, "apply", "-f", manifest("proxy:1", 0))
	waitUpdated(3)

	canary := plan("-f", manifest("proxy:2", 2)).Plans[0]
	require.Equal(t, map[string]int{"inPlace": 1, "held": 2}, canary.Ways)
	w.kubectl(t, ns, "apply", "-f", manifest("proxy:2", 2))
	waitUpdated(1)
	for _, pod := range w.pods(t, ns, "web") {
		if pod.Spec.Containers[0].Image == "proxy:2" {
			require.Equal(t, canary.Pods[0].Name, pod.Name, "plan said which")
		}
	}
	require.Equal(t, map[string]int{"updated": 1, "held": 2}, plan("poddecoration/proxy").Plans[0].Ways)

	out, _, code := w.kuperator(t, ns, "diff", "-f", manifest("proxy:3", 2))
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "1 changed in place, 2 kept as they are")

	w.kubectl(t, ns, "apply", "-f", manifest("proxy:non-exist", 2))
	w.waitBlocker(t, ns, "poddecoration/proxy", insight.CodeImagePull)
	require.Contains(t, w.does(t, ns, "status"), "PodDecoration "+ns+"/proxy  ")
}
