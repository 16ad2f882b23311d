package drain_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/drain"
)

const (
	toReplace = appsv1alpha1.ToReplaceLabel
	toDelete  = appsv1alpha1.ToDeleteLabel
)

var now = time.Unix(1_700_000_000, 0)

// serving is a Pod in service, as it is after the changes.
func serving(changes ...func(*podops.View)) podops.View {
	v := podops.View{Namespace: "shop", Name: "web-1", UID: "u1", Gate: true, Ready: true,
		Labels: map[string]string{}, Annotations: map[string]string{}}
	for _, change := range changes {
		change(&v)
	}
	return v
}

func notReady(v *podops.View) { v.Ready = false }

func marked(mark string, askers ...string) func(*podops.View) {
	return func(v *podops.View) {
		v.Labels[mark] = "1"
		for _, asker := range askers {
			c, _ := podops.Mark(*v, mark, "1", asker)
			*v = c.Apply(*v)
		}
		if len(askers) > 0 {
			c := podops.Withdraw(*v, mark, podops.AskerOther)
			*v = c.Apply(*v)
		}
	}
}

// held is a graceful deletion that a rule has held for a while.
func held(v *podops.View) {
	v.Labels[podops.OperatingPrefix+"/"+podops.DeletionID] = "1"
	v.Labels[podops.OperationTypePrefix+"/"+podops.DeletionID] = podops.TypeDelete
	v.Labels[podops.PreCheckPrefix+"/"+podops.DeletionID] = "1"
	v.Annotations[podops.RuleDetailPrefix+"/web"] = `{"stage":"PreCheck","passed":false}`
}

func replaces(policy appsv1alpha1.EvictionPolicy) drain.Policy {
	return drain.Policy{OnEviction: policy}
}

func TestWhetherAnEvictedPodIsReplacedFirst(t *testing.T) {
	always, blocked := replaces(appsv1alpha1.EvictionReplace), replaces(appsv1alpha1.EvictionReplaceWhenBlocked)
	operated := func(v *podops.View) { v.Labels[podops.OperatingPrefix+"/collaset"] = "1" }
	ran := func(v *podops.View) { v.ContainersReady = true }
	for name, tc := range map[string]struct {
		policy  drain.Policy
		pod     podops.View
		refused bool
		want    bool
	}{
		"without a policy":                                                  {pod: serving(), refused: true},
		"Replace":                                                           {policy: always, pod: serving(), want: true},
		"Replace, again":                                                    {policy: always, pod: serving(marked(toReplace, "eviction")), want: true},
		"Replace, and a Pod that does not serve":                            {policy: always, pod: serving(notReady)},
		"Replace, and one that is being updated":                            {policy: always, pod: serving(notReady, operated, ran), want: true},
		"Replace, and one that does not run after an update":                {policy: always, pod: serving(notReady, operated)},
		"Replace, and one that no longer serves, once it is asked":          {policy: always, pod: serving(notReady, marked(toReplace, "eviction")), want: true},
		"Replace, and one that no longer serves, which a user has replaced": {policy: always, pod: serving(notReady, marked(toReplace))},
		"Replace, and rules hold the deletion of one that does not serve":   {policy: always, pod: serving(notReady, marked(toDelete, "eviction"), held), want: true},
		"Replace, and one that a user has deleted":                          {policy: always, pod: serving(marked(toDelete), held)},
		"Replace, and no Pod can be":                                        {policy: drain.Policy{OnEviction: always.OnEviction, Obstacle: "no"}, pod: serving()},
		"WhenBlocked":                                                       {policy: blocked, pod: serving()},
		"WhenBlocked, and a budget refuses":                                 {policy: blocked, pod: serving(), refused: true, want: true},
		"WhenBlocked, being deleted":                                        {policy: blocked, pod: serving(marked(toDelete, "eviction"))},
		"WhenBlocked, and rules have held it":                               {policy: blocked, pod: serving(marked(toDelete, "eviction"), held), want: true},
		"WhenBlocked, and a job wants it deleted, too":                      {policy: blocked, pod: serving(marked(toDelete, "eviction", "operationjob/1"), held)},
		"WhenBlocked, being replaced":                                       {policy: blocked, pod: serving(marked(toReplace)), want: true},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, tc.policy.Replaces(tc.pod, tc.refused)) })
	}
}

func TestAnEvictionAsksOnceAndWithdrawsWhatItAskedBefore(t *testing.T) {
	v := serving()
	for _, replaces := range []bool{false, true} {
		c, err := drain.Ask(v, replaces, now, podops.AskerEviction)
		require.NoError(t, err)
		v = c.Apply(v)
		again, err := drain.Ask(v, replaces, now.Add(time.Second), podops.AskerEviction)
		require.NoError(t, err)
		assert.True(t, again.IsZero(), "%+v", again)
	}
	assert.Equal(t, []string{podops.AskerEviction}, podops.Askers(v, toReplace))
	assert.NotContains(t, v.Labels, toDelete)
	assert.NotContains(t, v.Annotations, toDelete+podops.AskersSuffix)
}

func TestThePolicyOfACollaSet(t *testing.T) {
	set := func(change func(*appsv1alpha1.CollaSet)) *appsv1alpha1.CollaSet {
		s := &appsv1alpha1.CollaSet{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
		s.Spec.Disruption = &appsv1alpha1.Disruption{OnEviction: appsv1alpha1.EvictionReplace, BeforeEviction: true}
		change(s)
		return s
	}
	for name, tc := range map[string]struct {
		change   func(*appsv1alpha1.CollaSet)
		surges   bool
		obstacle string
	}{
		"as it is":  {change: func(*appsv1alpha1.CollaSet) {}, surges: true},
		"no field":  {change: func(s *appsv1alpha1.CollaSet) { s.Spec.Disruption = nil }},
		"Delete":    {change: func(s *appsv1alpha1.CollaSet) { s.Spec.Disruption.OnEviction = appsv1alpha1.EvictionDelete }},
		"no policy": {change: func(s *appsv1alpha1.CollaSet) { s.Spec.Disruption = &appsv1alpha1.Disruption{} }},
		"with claims": {obstacle: "volumeClaimTemplates", change: func(s *appsv1alpha1.CollaSet) {
			s.Spec.VolumeClaimTemplates = make([]corev1.PersistentVolumeClaim, 1)
		}},
		"in sequence": {obstacle: "persistent sequence", change: func(s *appsv1alpha1.CollaSet) {
			s.Spec.NamingStrategy = &appsv1alpha1.NamingStrategy{
				PodNamingSuffixPolicy: appsv1alpha1.PodNamingSuffixPersistentSequence}
		}},
		"being deleted": {obstacle: "is being deleted", change: func(s *appsv1alpha1.CollaSet) {
			s.DeletionTimestamp = &metav1.Time{Time: now}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := drain.PolicyOf(set(tc.change))
			assert.Equal(t, tc.surges, p.Surges())
			assert.Contains(t, p.Obstacle, tc.obstacle)
			assert.Equal(t, tc.obstacle == "", p.Obstacle == "")
		})
	}
	assert.Zero(t, drain.PolicyOf(nil))
}

func TestHowANodeStands(t *testing.T) {
	node := func(cordoned bool, taints []corev1.Taint, conditions ...corev1.NodeConditionType) *corev1.Node {
		n := &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: cordoned, Taints: taints}}
		for _, c := range conditions {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: c, Status: corev1.ConditionTrue})
		}
		return n
	}
	taint := func(key string, effect corev1.TaintEffect) []corev1.Taint {
		return []corev1.Taint{{Key: key, Effect: effect}}
	}
	for name, tc := range map[string]struct {
		node *corev1.Node
		want drain.Node
	}{
		"it takes Pods":            {node: node(false, nil, corev1.NodeReady)},
		"it is cordoned":           {node: node(true, nil, corev1.NodeReady), want: drain.Node{Closed: true}},
		"Karpenter disrupts it":    {node: node(false, taint("karpenter.sh/disrupted", "NoSchedule")), want: drain.Node{Closed: true, Leaving: true}},
		"it is removed":            {node: node(false, taint("ToBeDeletedByClusterAutoscaler", "NoSchedule")), want: drain.Node{Closed: true, Leaving: true}},
		"another taint":            {node: node(false, taint("gpu", "NoSchedule"))},
		"cordoned, and drained":    {node: node(true, nil, corev1.NodeDrainInProgress), want: drain.Node{Closed: true, Leaving: true}},
		"announced, not cordoned":  {node: node(false, nil, corev1.NodeMaintenancePlanned)},
		"it will be, and cordoned": {node: node(true, nil, corev1.NodeMaintenancePlanned), want: drain.Node{Closed: true, Leaving: true}},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, drain.NodeOf(tc.node)) })
	}
}

func TestAPodFollowsItsNode(t *testing.T) {
	closed, leaving := drain.Node{Closed: true}, drain.Node{Closed: true, Leaving: true}
	early, late := drain.Policy{OnEviction: "Replace", Early: true}, drain.Policy{OnEviction: "Replace"}
	for name, tc := range map[string]struct {
		policy drain.Policy
		pod    podops.View
		node   drain.Node
		want   []string // who asks for its replacement then
	}{
		"a node that is about to be drained":             {early, serving(), leaving, []string{"drain"}},
		"the same, and only evictions count":             {late, serving(), leaving, nil},
		"a cordon alone":                                 {early, serving(), closed, nil},
		"a Pod that does not serve":                      {early, serving(notReady), leaving, nil},
		"a Pod that is being deleted":                    {early, serving(marked(toDelete)), leaving, nil},
		"an eviction from a node that is closed":         {late, serving(marked(toReplace, "eviction")), closed, []string{"drain", "eviction"}},
		"an eviction from a node that takes Pods":        {late, serving(marked(toReplace, "eviction")), drain.Node{}, []string{"eviction"}},
		"the node takes Pods again":                      {late, serving(marked(toReplace, "drain", "eviction")), drain.Node{}, nil},
		"the same, and a job asks, too":                  {late, serving(marked(toReplace, "drain", "operationjob/1")), drain.Node{}, []string{"operationjob/1"}},
		"the node takes Pods again, with another policy": {drain.Policy{}, serving(marked(toReplace, "drain")), drain.Node{}, nil},
		"a user's mark on a node that takes Pods":        {early, serving(marked(toReplace)), drain.Node{}, []string{"other"}},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := tc.policy.Follow(tc.pod, tc.node)
			require.NoError(t, err)
			after := c.Apply(tc.pod)
			assert.Equal(t, tc.want, podops.Askers(after, toReplace))
			again, err := tc.policy.Follow(after, tc.node)
			require.NoError(t, err)
			assert.True(t, again.IsZero(), "%+v", again)
		})
	}
}

func TestAUserWhoTakesTheMarkAwayIsNotAskedAgainWhileTheNodeIsClosed(t *testing.T) {
	policy, leaving := drain.Policy{OnEviction: "Replace", Early: true}, drain.Node{Closed: true, Leaving: true}
	v := serving(marked(toReplace, podops.AskerDrain))
	delete(v.Labels, toReplace)
	c, err := policy.Follow(v, leaving)
	require.NoError(t, err)
	require.True(t, c.IsZero(), "%+v", c)
	c, err = policy.Follow(v, drain.Node{})
	require.NoError(t, err)
	v = c.Apply(v)
	require.NotContains(t, v.Annotations, toReplace+podops.AskersSuffix, "what is left of it goes with the cordon")
	c, err = policy.Follow(v, leaving)
	require.NoError(t, err)
	require.Equal(t, []string{podops.AskerDrain}, podops.Askers(c.Apply(v), toReplace))
}

// TestFollowingComesToRest: whatever a Pod has, what follows its node changes it once, and takes no one else's name away.
func TestFollowingComesToRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := serving()
		v.Ready = rapid.Bool().Draw(t, "ready")
		for _, mark := range []string{toReplace, toDelete} {
			if rapid.Bool().Draw(t, mark) {
				v.Labels[mark] = "1"
			}
			v.Annotations[mark+podops.AskersSuffix] = rapid.SampledFrom([]string{"", "drain", "eviction", "drain,eviction",
				"operationjob/1", "drain,operationjob/1", "eviction,other"}).Draw(t, "askers of "+mark)
		}
		p := drain.Policy{Early: rapid.Bool().Draw(t, "early"), OnEviction: rapid.SampledFrom(
			[]appsv1alpha1.EvictionPolicy{"", "Replace", "ReplaceWhenBlocked"}).Draw(t, "policy")}
		n := drain.Node{Closed: rapid.Bool().Draw(t, "closed")}
		n.Leaving = n.Closed && rapid.Bool().Draw(t, "leaving")
		c, err := p.Follow(v, n)
		require.NoError(t, err)
		after := c.Apply(v)
		again, err := p.Follow(after, n)
		require.NoError(t, err)
		require.True(t, again.IsZero(), "%+v after %+v", again, c)
		for _, asker := range []string{"operationjob/1", podops.AskerOther} {
			require.Equal(t, podops.MarkedBy(v, toReplace, asker), podops.MarkedBy(after, toReplace, asker))
		}
		require.Equal(t, podops.Askers(v, toDelete), podops.Askers(after, toDelete))
	})
}

func TestEvictionsThatAskedForTheDeletionAskForTheReplacement(t *testing.T) {
	v := serving(marked(toDelete, podops.AskerEviction, podops.AskerEvictionRequest, "operationjob/1"))
	c, err := drain.Ask(v, true, now, podops.AskerEviction)
	require.NoError(t, err)
	v = c.Apply(v)
	assert.Equal(t, []string{podops.AskerEviction, podops.AskerEvictionRequest}, podops.Askers(v, toReplace))
	assert.Equal(t, []string{"operationjob/1"}, podops.Askers(v, toDelete))
}
