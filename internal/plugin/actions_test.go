package plugin

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/dashboard"
	"kusionstack.io/kuperator/internal/insight"
	"kusionstack.io/kuperator/internal/revision"
)

var web = insight.Ref{Kind: appsv1alpha1.CollaSetKind, Namespace: "shop", Name: "web"}

// actor is that of the live page of a server, and the terminal. Six of its Pods are at web-1.
func (s *canaryServer) actor(t *testing.T) (a *pageActor, out, problems *bytes.Buffer) {
	t.Helper()
	listener := httptest.NewServer(s)
	t.Cleanup(listener.Close)
	t.Setenv("KUBECONFIG", "/dev/null")
	out, problems = &bytes.Buffer{}, &bytes.Buffer{}
	p, _ := newCommand(genericiooptions.IOStreams{In: strings.NewReader(""), Out: out, ErrOut: problems})
	namespace := "shop"
	p.config.APIServer, p.config.Namespace = &listener.URL, &namespace
	connection, err := p.connect()
	require.NoError(t, err)
	facts := &insight.Facts{CollaSets: []appsv1alpha1.CollaSet{*s.set}}
	for i := range 10 {
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(s.set, appsv1alpha1.SchemeGroupVersion.WithKind(appsv1alpha1.CollaSetKind))}}}
		pod.Labels = map[string]string{appsv1.ControllerRevisionHashLabelKey: "web-1"}
		if i >= 6 {
			pod.Labels[appsv1.ControllerRevisionHashLabelKey] = "web-2"
		}
		facts.Pods = append(facts.Pods, pod)
	}
	source := &fleetSource{s: connection, namespace: namespace, facts: facts, can: &revision.Capabilities{}}
	return &pageActor{p: p, source: source}, out, problems
}

// refusals are the verbs of an offer with why each is refused.
func refusals(offer dashboard.Offer) map[insight.Verb]string {
	verbs := map[insight.Verb]string{}
	for _, a := range offer.Actions {
		verbs[a.Verb] = a.Refused
	}
	return verbs
}

// TestThePageOffers: what a dry run of the very change passes, and why not the rest.
func TestThePageOffers(t *testing.T) {
	const (
		noPatch = `collasets.apps.kusionstack.io "web" is forbidden: User "eve" cannot patch resource "collasets" in API ` +
			`group "apps.kusionstack.io" in the namespace "shop"`
		policy = `collasets.apps.kusionstack.io "web" is forbidden: ValidatingAdmissionPolicy 'kuperator-operate' with ` +
			`binding 'kuperator-operate' denied request: of the spec of a CollaSet kuperator-operate may change paused`
		noRight = "you may not patch collasets.apps.kusionstack.io in namespace shop; the role edit has that right, by " +
			"kuperator-edit; kuperator-operate has it to pause, resume, restart and promote " +
			"(docs/kubectl-kuperator.md#permissions)"
		noRole = "the role kuperator-operate does not cover that; the role edit does (docs/kubectl-kuperator.md#permissions)"
	)
	for name, tc := range map[string]struct {
		set     func(*appsv1alpha1.CollaSet)
		verb    insight.Verb
		refused func(string) (string, metav1.StatusReason, int32)
		want    map[insight.Verb]string
		tried   int
	}{
		"all to who may": {want: map[insight.Verb]string{insight.VerbPause: "", insight.VerbPromote: "",
			insight.VerbUndo: "", insight.VerbRestart: ""}, tried: 4},
		"one that is asked about": {verb: insight.VerbUndo, want: map[insight.Verb]string{insight.VerbUndo: ""}, tried: 1},
		"one that is not there":   {verb: insight.VerbResume, want: map[insight.Verb]string{}},
		"none to who may not": {refused: func(string) (string, metav1.StatusReason, int32) {
			return noPatch, metav1.StatusReasonForbidden, http.StatusForbidden
		}, want: map[insight.Verb]string{insight.VerbPause: noRight, insight.VerbPromote: noRight, insight.VerbUndo: noRight,
			insight.VerbRestart: noRight}, tried: 4},
		"no template to who is on call": {refused: func(body string) (string, metav1.StatusReason, int32) {
			if strings.Contains(body, "/spec/template") {
				return policy, metav1.StatusReasonForbidden, http.StatusForbidden
			}
			return "", "", 0
		}, want: map[insight.Verb]string{insight.VerbPause: "", insight.VerbPromote: "", insight.VerbUndo: noRole,
			insight.VerbRestart: ""}, tried: 4},
		"no restart while it is paused": {set: func(set *appsv1alpha1.CollaSet) { set.Spec.Paused = true },
			want: map[insight.Verb]string{insight.VerbResume: "", insight.VerbPromote: "", insight.VerbUndo: "",
				insight.VerbRestart: "collaset/web is paused and would not restart: kubectl kuperator -n shop resume " +
					"collaset/web, and then restart"}, tried: 3},
		"no undo before the controller has seen the change": {set: func(set *appsv1alpha1.CollaSet) { set.Generation = 3 },
			want: map[insight.Verb]string{insight.VerbPause: "", insight.VerbPromote: "", insight.VerbRestart: "",
				insight.VerbUndo: "collaset-controller has not seen the last change of collaset/web, so the revision before it " +
					"is not known: try again in a moment, or choose one with --to-revision"}, tried: 3},
	} {
		t.Run(name, func(t *testing.T) {
			s := &canaryServer{set: canary(), refused: tc.refused}
			if tc.set != nil {
				tc.set(s.set)
			}
			a, out, problems := s.actor(t)
			offer, err := a.Offer(t.Context(), web, tc.verb)
			require.NoError(t, err)
			assert.Equal(t, tc.want, refusals(offer))
			assert.Len(t, s.written, tc.tried)
			for _, written := range s.written {
				assert.Contains(t, written, "collasets/web All ", "nothing is written")
			}
			assert.Empty(t, out.String()+problems.String(), "to look is nothing to tell")
		})
	}
}

// TestTheConfirmationTells: which Pods, to which revision, by which command, and what admission warns of.
func TestTheConfirmationTells(t *testing.T) {
	s := &canaryServer{set: canary(), warning: "Pods are re-created"}
	a, _, problems := s.actor(t)
	offer, err := a.Offer(t.Context(), web, insight.VerbUndo)
	require.NoError(t, err)
	assert.Equal(t, dashboard.Offer{Version: "set/2", Actions: []insight.Action{{Verb: insight.VerbUndo, Revision: 1,
		Happens: "Undo web: the template of revision 1 (web-1) is put back: main=web:1. 4 of 10 Pods go back, in place. " +
			"Change your manifests as well.",
		Command:  "kubectl kuperator undo collaset/web -n shop --to-revision=1",
		Warnings: []string{"Pods are re-created"}}}}, offer)
	assert.Empty(t, problems.String())
}

// TestThePageDoesWhatTheCommandsDo: the same requests.
func TestThePageDoesWhatTheCommandsDo(t *testing.T) {
	now := regexp.MustCompile(`"\d{4}-\d\d-\d\dT[^"]*"`)
	for verb, set := range map[insight.Verb]func(*appsv1alpha1.CollaSet){
		insight.VerbPause: nil, insight.VerbPromote: nil, insight.VerbUndo: nil, insight.VerbRestart: nil,
		insight.VerbResume: func(set *appsv1alpha1.CollaSet) { set.Spec.Paused = true },
	} {
		t.Run(string(verb), func(t *testing.T) {
			page, command := &canaryServer{set: canary()}, &canaryServer{set: canary()}
			if set != nil {
				set(page.set)
				set(command.set)
			}
			a, out, problems := page.actor(t)
			offer, err := a.Offer(t.Context(), web, verb)
			require.NoError(t, err)
			require.Len(t, offer.Actions, 1)
			page.written = nil
			outcome, err := a.Act(t.Context(), dashboard.Order{Ref: web, Verb: verb, Version: offer.Version,
				Revision: offer.Actions[0].Revision})
			require.NoError(t, err)
			words, shell := strings.CutPrefix(offer.Actions[0].Command, "kubectl kuperator ")
			require.True(t, shell)
			text, _, code := command.runs(t, words)
			require.Zero(t, code)
			require.Len(t, page.written, 1)
			assert.Equal(t, now.ReplaceAllString(command.written[0], "now"), now.ReplaceAllString(page.written[0], "now"))
			assert.Equal(t, text, strings.Join(append([]string{outcome.Text}, outcome.Details...), "\n  ")+"\n")
			assert.Regexp(t, `^\d\d:\d\d:\d\d  `+string(verb)+` collaset/web in namespace shop, on the page\n`, out.String())
			assert.Contains(t, out.String(), text, "the terminal has it too")
			assert.Empty(t, problems.String())
		})
	}
}

// TestThePageRefuses what is not what was confirmed, and what it does not show.
func TestThePageRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		order   dashboard.Order
		refused func(string) (string, metav1.StatusReason, int32)
		status  int
		says    string
		written int
	}{
		"what has been changed meanwhile": {order: dashboard.Order{Ref: web, Verb: insight.VerbPause, Version: "set/1"},
			status: http.StatusConflict,
			says:   "collaset/web has been changed meanwhile, and nothing was written: see what is there now, and try again"},
		"what was made again under its name": {order: dashboard.Order{Ref: web, Verb: insight.VerbPause,
			Version: "other/2"}, status: http.StatusConflict, says: "has been changed meanwhile"},
		"what another client changes at the same time": {order: dashboard.Order{Ref: web, Verb: insight.VerbPause,
			Version: "set/2"}, refused: func(string) (string, metav1.StatusReason, int32) {
			return "the UID differs", metav1.StatusReasonConflict, http.StatusConflict
		}, status: http.StatusConflict, says: "another client has changed it meanwhile", written: 1},
		"what the user may not do": {order: dashboard.Order{Ref: web, Verb: insight.VerbPause, Version: "set/2"},
			refused: func(string) (string, metav1.StatusReason, int32) {
				return `cannot patch resource "collasets" in API group "apps.kusionstack.io" in the namespace "shop"`,
					metav1.StatusReasonForbidden, http.StatusForbidden
			}, status: http.StatusForbidden, says: "you may not patch collasets.apps.kusionstack.io in namespace shop",
			written: 1},
		"a revision that there is not": {order: dashboard.Order{Ref: web, Verb: insight.VerbUndo, Version: "set/2",
			Revision: 9}, status: http.StatusBadGateway, says: "has no revision 9"},
		"another verb": {order: dashboard.Order{Ref: web, Verb: "delete", Version: "set/2"},
			status: http.StatusBadRequest, says: `"delete" is no action`},
		"another kind": {order: dashboard.Order{Ref: insight.Ref{Kind: "Pod", Namespace: "shop", Name: "web"},
			Verb: insight.VerbPause, Version: "set/2"}, status: http.StatusBadGateway, says: "actions are for CollaSets"},
		"another namespace": {order: dashboard.Order{Ref: insight.Ref{Kind: "CollaSet", Namespace: "pay", Name: "web"},
			Verb: insight.VerbPause, Version: "set/2"}, status: http.StatusBadGateway, says: "this page shows namespace shop"},
		"what there is not": {order: dashboard.Order{Ref: insight.Ref{Kind: "CollaSet", Namespace: "shop", Name: "db"},
			Verb: insight.VerbPause, Version: "set/2"}, status: http.StatusNotFound, says: "reading collaset/db"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &canaryServer{set: canary(), refused: tc.refused}
			a, out, problems := s.actor(t)
			_, err := a.Act(t.Context(), tc.order)
			refusal := (*dashboard.Refusal)(nil)
			require.ErrorAs(t, err, &refusal)
			assert.Equal(t, tc.status, refusal.Status)
			assert.Contains(t, refusal.Reason, tc.says)
			assert.Len(t, s.written, tc.written)
			assert.Contains(t, out.String(), "on the page", "the terminal tells what was tried")
			assert.Contains(t, problems.String(), "error: "+refusal.Reason)
		})
	}
}
