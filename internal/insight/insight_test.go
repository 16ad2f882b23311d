package insight_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/insight"
)

var update = flag.Bool("update", false, "write the golden files anew")

// noon is when the situations in testdata are looked at.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// load reads the facts of a situation.
func load(t *testing.T, situation string) insight.Facts {
	t.Helper()
	file, err := os.ReadFile(filepath.Join("testdata", situation, "objects.yaml"))
	require.NoError(t, err)
	f := insight.Facts{Now: noon, LeasesKnown: true, Namespaces: map[string]map[string]string{},
		Nodes: map[string]*corev1.Node{}}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(file), 4096)
	for {
		var raw json.RawMessage
		err := documents.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return f
		}
		require.NoError(t, err)
		var kind metav1.TypeMeta
		require.NoError(t, json.Unmarshal(raw, &kind))
		switch kind.Kind {
		case "Pod":
			f.Pods = append(f.Pods, parse[corev1.Pod](t, raw))
		case "CollaSet":
			f.CollaSets = append(f.CollaSets, parse[appsv1alpha1.CollaSet](t, raw))
		case "PodTransitionRule":
			f.Rules = append(f.Rules, parse[appsv1alpha1.PodTransitionRule](t, raw))
		case "OperationJob":
			f.Jobs = append(f.Jobs, parse[appsv1alpha1.OperationJob](t, raw))
		case "PodDecoration":
			f.Decorations = append(f.Decorations, parse[appsv1alpha1.PodDecoration](t, raw))
		case "Lease":
			f.Leases = append(f.Leases, parse[coordinationv1.Lease](t, raw))
		case "Namespace":
			n := parse[corev1.Namespace](t, raw)
			f.Namespaces[n.Name] = n.Annotations
		case "Node":
			n := parse[corev1.Node](t, raw)
			f.Nodes[n.Name] = &n
		default:
			t.Fatalf("%s has a %q", situation, kind.Kind)
		}
	}
}

func parse[T any](t *testing.T, raw []byte) (object T) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&object))
	return object
}

// golden compares the JSON form with a file.
func golden(t *testing.T, path string, value any) {
	t.Helper()
	got, err := json.MarshalIndent(value, "", "  ")
	require.NoError(t, err)
	got = append(got, '\n')
	if *update {
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "write it with -update")
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got; -update takes it over):\n%s", path, diff)
	}
}

// TestWhyNamesTheTrueBlocker: each of the situations in testdata, whose answers the plugin's tests print.
func TestWhyNamesTheTrueBlocker(t *testing.T) {
	for situation, tc := range map[string]struct {
		subject insight.Ref
		want    insight.Code // "" means nothing
	}{
		"rule":               {insight.Ref{Kind: "Pod", Name: "web-a"}, insight.CodeBudgetSpent},
		"group":              {insight.Ref{Kind: "Pod", Name: "web-a"}, insight.CodeGroupBudgetSpent},
		"webhook-rule":       {insight.Ref{Kind: "Pod", Name: "web-a"}, insight.CodeWebhookRule},
		"finalizer":          {insight.Ref{Kind: "Pod", Name: "web-a"}, insight.CodeProtectionFinalizer},
		"stuck-kubelet":      {insight.Ref{Kind: "Pod", Name: "web-a"}, insight.CodeKubeletBehind},
		"node-not-ready":     {insight.Ref{Kind: "Pod", Name: "web-a"}, insight.CodeNodeNotReady},
		"unschedulable":      {insight.Ref{Kind: "Pod", Name: "web-a"}, insight.CodeUnschedulable},
		"image-pull":         {insight.Ref{Kind: "Pod", Name: "web-a"}, insight.CodeImagePull},
		"freeze":             {insight.Ref{Kind: "Pod", Name: "web-a"}, "Frozen"},
		"missing-controller": {insight.Ref{Kind: "Pod", Name: "web-a"}, insight.CodeControllerMissing},
		"quota":              {insight.Ref{Kind: "CollaSet", Name: "web"}, insight.CodeQuota},
		"paused":             {insight.Ref{Kind: "Pod", Name: "web-a"}, insight.CodePaused},
		"deployment":         {insight.Ref{Kind: "Deployment", Name: "guest"}, insight.CodeBudgetSpent},
		"nothing":            {insight.Ref{Kind: "Pod", Name: "web-a"}, ""},
		"job-rule":           {insight.Ref{Kind: "OperationJob", Name: "restart-web"}, insight.CodeContainerCrashing},
		"job-action":         {insight.Ref{Kind: "OperationJob", Name: "warm"}, insight.CodeActionPending},
		"job-absent":         {insight.Ref{Kind: "Pod", Name: "web-a"}, ""},
		"decoration":         {insight.Ref{Kind: "PodDecoration", Name: "proxy"}, insight.CodeImagePull},
		"decoration-pod":     {insight.Ref{Kind: "Pod", Name: "guest-b"}, "NoWorkload"},
		"decoration-of-set":  {insight.Ref{Kind: "Pod", Name: "guest-b"}, insight.CodeQueued},
		"job-failed":         {insight.Ref{Kind: "OperationJob", Name: "restart-web"}, "PodNotFound"},
	} {
		t.Run(situation, func(t *testing.T) {
			facts := load(t, situation)
			tc.subject.Namespace = "shop"
			answer, found := insight.Why(facts, tc.subject, nil)
			require.True(t, found)
			got := insight.Code("")
			if answer.Blocker != nil {
				got = answer.Blocker.Code
			}
			require.Equal(t, tc.want, got, "%+v", answer.Reasons)
			golden(t, filepath.Join("testdata", situation, "answer.json"), answer)
			golden(t, filepath.Join("testdata", situation, "fleet.json"), insight.Describe(facts))
		})
	}
}

// TestABlockerOfOthersIsNotAPods: of a PodDecoration's blockers a Pod has those that name it, or may be about it too.
func TestABlockerOfOthersIsNotAPods(t *testing.T) {
	for name, tc := range map[string]struct {
		blockers []appsv1alpha1.Blocker
		want     insight.Code
	}{
		"of Pods outside the lifecycle": {[]appsv1alpha1.Blocker{{Reason: "NotManaged", Message: "Pod other: restart it"}},
			insight.CodeQueued},
		"its own first": {[]appsv1alpha1.Blocker{{Reason: "MaxUnavailable", Message: "Pod other: enough are"},
			{Reason: "ChangeRefused", Message: "Pod guest-b: no"}}, "ChangeRefused"},
		"that it may share": {[]appsv1alpha1.Blocker{{Reason: "NotManaged", Message: "Pod other: restart it"},
			{Reason: "MaxUnavailable", Message: "Pod third: enough are"}}, "MaxUnavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			facts := load(t, "decoration-pod")
			facts.Decorations[0].Status.Blockers = tc.blockers
			answer, found := insight.Why(facts, podRef("guest-b"), nil)
			require.True(t, found)
			require.Equal(t, tc.want, answer.Blocker.Code)
		})
	}
}

// TestWhatAllWaitForIsNamedOnce: a blocker of the CollaSet is that of its Pods, too.
func TestWhatAllWaitForIsNamedOnce(t *testing.T) {
	facts := load(t, "nothing")
	set := &facts.CollaSets[0]
	set.Status.UpdatedRevision, set.Status.Conditions[0].Status = "web-9", metav1.ConditionFalse
	set.Status.Blockers = []appsv1alpha1.Blocker{{Reason: "MaxUnavailable", Message: "Pod web-a: enough are", Count: 2}}
	answer, found := insight.Why(facts,
		insight.Ref{Kind: appsv1alpha1.CollaSetKind, Namespace: set.Namespace, Name: set.Name}, nil)
	require.True(t, found)
	require.Contains(t, codes(answer.Stuck), insight.Code("MaxUnavailable"), "Pods wait for it")
	count := 0
	for _, r := range answer.Reasons {
		if r.Code == "MaxUnavailable" {
			count++
		}
	}
	require.Equal(t, 1, count, "%v", answer.Reasons)
}

// podRef names a Pod of namespace shop.
func podRef(name string) insight.Ref { return insight.Ref{Kind: "Pod", Namespace: "shop", Name: name} }

func codes(stuck []insight.Stuck) (all []insight.Code) {
	for _, s := range stuck {
		all = append(all, s.Code)
	}
	return all
}

// TestWhatIsReportedBesideReady: Pods that nothing brings to a PodDecoration keep it from nothing, and are named.
func TestWhatIsReportedBesideReady(t *testing.T) {
	facts := load(t, "decoration-pod")
	facts.Pods = nil
	status := &facts.Decorations[0].Status
	status.Conditions[0].Status, status.Blockers = metav1.ConditionTrue, []appsv1alpha1.Blocker{
		{Reason: "NotManaged", Message: "Pod other: restart it", Count: 3}}
	answer, found := insight.Why(facts,
		insight.Ref{Kind: appsv1alpha1.PodDecorationKind, Namespace: "shop", Name: "proxy"}, nil)
	require.True(t, found)
	require.Equal(t, insight.Code("NotManaged"), answer.Blocker.Code)
	require.Contains(t, answer.Blocker.Message, "(3 Pods)")
}

// TestARuleThatLetsNoneGo is not waited for: no Pod is out that could come back.
// TestADeletionIsNamed: of a CollaSet that is being deleted, and what its Pods wait for comes first.
func TestADeletionIsNamed(t *testing.T) {
	set := appsv1alpha1.CollaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web",
		DeletionTimestamp: &metav1.Time{Time: noon}}}
	set.Status.Blockers = []appsv1alpha1.Blocker{{Reason: "SomeCause", Message: "a Pod cannot go"}}
	answer, found := insight.Why(insight.Facts{Now: noon, CollaSets: []appsv1alpha1.CollaSet{set}},
		insight.Ref{Kind: appsv1alpha1.CollaSetKind, Namespace: "shop", Name: "web"}, nil)
	require.True(t, found)
	require.Equal(t, insight.Code("SomeCause"), answer.Blocker.Code)
	require.Equal(t, "the CollaSet is being deleted", answer.Reasons[1].Message)
}

func TestARuleThatLetsNoneGo(t *testing.T) {
	facts := load(t, "rule")
	next := func() string {
		answer, found := insight.Why(facts, podRef("web-a"), nil)
		require.True(t, found)
		require.Equal(t, insight.CodeBudgetSpent, answer.Blocker.Code)
		return answer.Blocker.Next
	}
	require.Contains(t, next(), "when one of those that are out of service is back")
	status := &facts.Rules[0].Status
	status.Granted, status.Available = 0, status.Desired
	require.Contains(t, next(), "change its bound")
}
