package e2e

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/workload"
)

// TestMalformed shows that what can never work is refused, with the field, its
// value and what to do, by the schema alone as well as with webhook-server.
func TestMalformed(t *testing.T) {
	cases := map[string]struct {
		object func(namespace string) client.Object
		// want are parts of the refusal.
		want []string
	}{
		"a CollaSet whose selector does not match its template": {
			object: func(ns string) client.Object {
				set := workload.CollaSet(ns, "web", image1, 1)
				set.Spec.Selector.MatchLabels["app"] = "other"
				return set
			},
			want: []string{"spec.selector", "matchLabels"},
		},
		"a CollaSet of fewer than no Pods": {
			object: func(ns string) client.Object { return workload.CollaSet(ns, "web", image1, -1) },
			want:   []string{"spec.replicas", "-1"},
		},
		"a CollaSet with a partition below zero": {
			object: func(ns string) client.Object {
				set := workload.CollaSet(ns, "web", image1, 1)
				set.Spec.UpdateStrategy.RollingUpdate = &appsv1alpha1.RollingUpdateStrategy{ByPartition: &appsv1alpha1.ByPartition{Partition: ptr.To(intstr.FromInt32(-2))}}
				return set
			},
			want: []string{"partition", "-2"},
		},
		"a CollaSet with an update policy that does not exist": {
			object: func(ns string) client.Object {
				set := workload.CollaSet(ns, "web", image1, 1)
				set.Spec.UpdateStrategy.PodUpdatePolicy = "InPlaceMaybe"
				return set
			},
			want: []string{"spec.updateStrategy.podUpgradePolicy", "InPlaceMaybe", "InPlaceIfPossible"},
		},
		"a rule with a share that is none": {
			object: func(ns string) client.Object { return workload.Rule(ns, "web", "120 percent") },
			want:   []string{"maxUnavailableValue", "120 percent"},
		},
		"a rule with a negative number": {
			object: func(ns string) client.Object {
				r := workload.Rule(ns, "web", "1")
				r.Spec.Rules[0].AvailablePolicy.MaxUnavailableValue = ptr.To(intstr.FromInt32(-3))
				return r
			},
			want: []string{"maxUnavailableValue", "-3"},
		},
		"a rule that names one check twice": {
			object: func(ns string) client.Object {
				r := workload.Rule(ns, "web", "1")
				r.Spec.Rules = append(r.Spec.Rules, r.Spec.Rules[0])
				return r
			},
			want: []string{"spec.rules", "available"},
		},
		"a rule with a stage that does not exist": {
			object: func(ns string) client.Object {
				r := workload.Rule(ns, "web", "1")
				r.Spec.Rules[0].Stage = ptr.To[appsv1alpha1.TransitionRuleStage]("MidCheck")
				return r
			},
			want: []string{"stage", "MidCheck", "PreCheck"},
		},
	}
	for _, webhook := range []string{"with webhook-server", "without webhook-server"} {
		t.Run(webhook, func(t *testing.T) {
			w := alone(t)
			ns := w.namespace(t)
			if webhook == "without webhook-server" {
				w.down(t, suite.Webhook)
			}
			for name, tc := range cases {
				t.Run(name, func(t *testing.T) {
					err := w.client.Create(t.Context(), tc.object(ns))
					require.Error(t, err, "it is refused")
					for _, part := range tc.want {
						assert.Contains(t, err.Error(), part)
					}
				})
			}
		})
	}
}
