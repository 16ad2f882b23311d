package podtransitionrule

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

func TestGrantsOfAnotherLeaderAreNotKnown(t *testing.T) {
	versions := 0
	rule := func(uid types.UID, pods ...string) *appsv1alpha1.PodTransitionRule {
		versions++
		r := &appsv1alpha1.PodTransitionRule{}
		r.UID, r.ResourceVersion = uid, strconv.Itoa(versions)
		for _, p := range pods {
			r.Status.Grants = append(r.Status.Grants, appsv1alpha1.PodGrant{PodName: p})
		}
		return r
	}
	known := knownFrom([]*appsv1alpha1.PodTransitionRule{rule("a", "p0"), rule("b")})
	for name, tc := range map[string]struct {
		rules []*appsv1alpha1.PodTransitionRule
		want  bool
	}{
		"what was read":       {[]*appsv1alpha1.PodTransitionRule{rule("a", "p0"), rule("b")}, true},
		"a rule that is gone": {[]*appsv1alpha1.PodTransitionRule{rule("b")}, true},
		"a new rule without grants": {[]*appsv1alpha1.PodTransitionRule{rule("a", "p0"), rule("b"),
			rule("c")}, true},
		"a grant that we did not write":        {[]*appsv1alpha1.PodTransitionRule{rule("a", "p0"), rule("b", "p1")}, false},
		"a grant that we did not take back":    {[]*appsv1alpha1.PodTransitionRule{rule("a"), rule("b")}, false},
		"a new rule that has grants already":   {[]*appsv1alpha1.PodTransitionRule{rule("c", "p0")}, false},
		"a rule of another UID with the grant": {[]*appsv1alpha1.PodTransitionRule{rule("a2", "p0")}, false},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, known.match(tc.rules)) })
	}
}
