package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/nightly"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// manifest is a CollaSet as a script applies it. The zero value of a field leaves it as it is by default.
type manifest struct {
	image, hostname, policy string
	partition, deadline     int
	paused                  bool
}

func (m manifest) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: apps.kusionstack.io/v1alpha1
kind: CollaSet
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  paused: %t
  template:
    metadata: {labels: {app: web, kusionstack.io/control: "true"}}
    spec:
      hostname: %q
      containers: [{name: main, image: %q}]
`, m.paused, m.hostname, m.image)
	if m.deadline > 0 {
		fmt.Fprintf(&b, "  progressDeadlineSeconds: %d\n", m.deadline)
	}
	b.WriteString("  updateStrategy:\n    rollingUpdate:\n      maxUnavailable: 100%\n")
	if m.partition > 0 {
		fmt.Fprintf(&b, "      byPartition: {partition: %d}\n", m.partition)
	}
	if m.policy != "" {
		fmt.Fprintf(&b, "    podUpgradePolicy: %s\n", m.policy)
	}
	return b.String()
}

// TestExitCodes has a script apply a CollaSet in nine situations and wait for it: what apply warns of, with which exit
// code kubectl wait and kubectl kuperator status --wait end, and that they end by themselves where more time changes
// nothing.
func TestExitCodes(t *testing.T) {
	nightly.Only(t, pluginGuard)
	w := together(t)
	const (
		ready, stalled, soon = "condition=Ready", "condition=Stalled", "2s"
		done                 = "successfully rolled out"
	)
	long := await.Patience.String()
	for name, tc := range map[string]struct {
		before  manifest // serves already; the zero value: there is none
		rule    string   // how many Pods may be out of service, "" without a rule
		applied manifest
		warning string // what makes apply --warnings-as-errors fail, "" if it passes
		// waits is what kubectl wait waits for, and waitFor how long at most: if that is soon, it fails.
		waits, waitFor string
		// statusFor is how long status --wait waits at most, code how it ends, and says what it prints.
		statusFor string
		code      int
		says      string
	}{
		"created": {applied: manifest{image: image1},
			waits: ready, waitFor: long, statusFor: long, says: done},
		"updated in place": {before: manifest{image: image1}, applied: manifest{image: image2}, rule: "1",
			waits: ready, waitFor: long, statusFor: long, says: done},
		"unchanged": {before: manifest{image: image1}, applied: manifest{image: image1},
			waits: ready, waitFor: long, statusFor: long, says: done},
		"updated by new Pods": {before: manifest{image: image1}, applied: manifest{image: image1, hostname: "other"},
			warning: "re-created", waits: ready, waitFor: long, statusFor: long, says: done},
		"as far as the partition": {before: manifest{image: image1}, applied: manifest{image: image2, partition: 1},
			waits: "jsonpath={.status.updatedAvailableReplicas}=2", waitFor: long,
			statusFor: long, says: done + ": the partition keeps back 1 Pod"},
		"an image that cannot be pulled": {before: manifest{image: image1},
			applied: manifest{image: "web:non-exist", deadline: 3},
			waits:   stalled, waitFor: long, statusFor: long, code: 1, says: "the rollout of collaset/web has failed"},
		"held by a rule": {before: manifest{image: image1}, rule: "0", applied: manifest{image: image2},
			waits: ready, waitFor: soon, statusFor: soon, code: 1, says: "is not done after 2s: 0 of 3 Pods are updated; "},
		"paused": {before: manifest{image: image1}, applied: manifest{image: image2, paused: true},
			waits: ready, waitFor: soon, statusFor: long, code: 1, says: "collaset/web is paused: resume it with"},
		"a change that the policy forbids": {before: manifest{image: image1, policy: "InPlaceOnly"},
			applied: manifest{image: image1, policy: "InPlaceOnly", hostname: "other"}, warning: "InPlaceOnly",
			waits: stalled, waitFor: long, statusFor: long, code: 1, says: "the rollout of collaset/web has failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := w.namespace(t)
			if tc.rule != "" {
				w.create(t, workload.Rule(ns, "web", tc.rule))
			}
			apply := func(m manifest, flags ...string) error {
				_, err := w.KubectlWith(t.Context(), m.text(), append([]string{"-n", ns, "apply", "-f", "-"}, flags...)...)
				return err
			}
			if tc.before != (manifest{}) {
				require.NoError(t, apply(tc.before))
				w.does(t, ns, "status", "collaset/web", "--wait", "--timeout", long)
			}

			err := apply(tc.applied, "--warnings-as-errors")
			if tc.warning == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.warning)
			}
			begin := time.Now()
			out, problems, code := w.kuperator(t, ns, "status", "collaset/web", "--wait", "--timeout", tc.statusFor)
			require.Equal(t, tc.code, code, out+problems)
			require.Contains(t, out+problems, tc.says)
			t.Logf("status --wait ended with %d after %s", code, time.Since(begin).Round(100*time.Millisecond))
			begin = time.Now()
			_, err = w.Kubectl(t.Context(), "-n", ns, "wait", "collaset/web", "--for="+tc.waits, "--timeout="+tc.waitFor)
			require.Equal(t, tc.waitFor == soon, err != nil, "kubectl wait --for=%s: %v", tc.waits, err)
			t.Logf("wait --for=%s ended with error %v after %s", tc.waits, err, time.Since(begin).Round(100*time.Millisecond))
		})
	}
}
