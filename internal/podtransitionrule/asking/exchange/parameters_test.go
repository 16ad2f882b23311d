package exchange

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

const examplePod = `{"metadata":{"name":"web-0","labels":{"app":"web","a.b/c.d":"x"},"annotations":{"note":"say \"hi\"\nthere"}},
"spec":{"hostNetwork":true,"priority":7,"containers":[{"name":"web"}],"nodeName":null},"status":{"podIP":"10.0.0.1"}}`

func podJSON(t testing.TB, text string) map[string]any {
	t.Helper()
	var pod map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &pod))
	return pod
}

func field(path string) appsv1alpha1.Parameter {
	return appsv1alpha1.Parameter{Key: "k",
		ValueFrom: &appsv1alpha1.ParameterSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

func TestParameters(t *testing.T) {
	known := Pod{Namespace: "ns", Name: "web-0", UID: "u"}
	both := field("metadata.name")
	both.Value = "given"
	tests := map[string]struct {
		parameter appsv1alpha1.Parameter
		want      string
		wantErr   string
		needs     bool
	}{
		"a value":                   {parameter: appsv1alpha1.Parameter{Key: "k", Value: "v"}, want: "v"},
		"a value wins over a field": {parameter: both, want: "given"},
		"neither":                   {parameter: appsv1alpha1.Parameter{Key: "k"}},
		"a source without a field": {parameter: appsv1alpha1.Parameter{Key: "k",
			ValueFrom: &appsv1alpha1.ParameterSource{}}},
		"the name":      {parameter: field("metadata.name"), want: "web-0"},
		"the namespace": {parameter: field("metadata.namespace"), want: "ns"},
		"the UID":       {parameter: field("metadata.uid"), want: "u"},
		"labels": {parameter: field("metadata.labels"), want: "a.b/c.d=\"x\"\napp=\"web\"",
			needs: true},
		"annotations": {parameter: field("metadata.annotations"), want: `note="say \"hi\"\nthere"`,
			needs: true},
		"one label": {parameter: field("metadata.labels['a.b/c.d']"), want: "x", needs: true},
		"one annotation": {parameter: field("metadata.annotations['note']"), want: "say \"hi\"\nthere",
			needs: true},
		"a label that is not there": {parameter: field("metadata.labels['nope']"), needs: true},
		"a text":                    {parameter: field("status.podIP"), want: "10.0.0.1", needs: true},
		"a boolean":                 {parameter: field("spec.hostNetwork"), want: "true", needs: true},
		"a number":                  {parameter: field("spec.priority"), want: "7", needs: true},
		"a list":                    {parameter: field("spec.containers"), want: `[{"name":"web"}]`, needs: true},
		"null":                      {parameter: field("spec.nodeName"), needs: true},
		"a field without a value":   {parameter: field("status.hostIP"), needs: true},
		"a path through nothing": {parameter: field("spec.securityContext.fsGroup"),
			wantErr: `webhook parameter "k": fieldPath is "spec.securityContext.fsGroup", but the Pod has nothing below spec.securityContext: correct it`, needs: true},
		"a path through a text": {parameter: field("status.podIP.x"), wantErr: "nothing below status.podIP",
			needs: true},
		"a path into a list": {parameter: field("spec.containers.0"), wantErr: "nothing below spec.containers",
			needs: true},
		"brackets elsewhere":        {parameter: field("spec['x']"), wantErr: "only metadata.labels['key']", needs: true},
		"an empty path":             {parameter: field(""), wantErr: "fieldPath is empty"},
		"an empty name":             {parameter: field("spec..x"), wantErr: "names with dots between", needs: true},
		"nothing but dots":          {parameter: field(".."), wantErr: "names with dots between", needs: true},
		"brackets that do not open": {parameter: field("metadata.labels']"), want: "", needs: true},
		"more than anybody would send": {parameter: field("metadata.annotations['big']"), wantErr: "more than 32768 bytes",
			needs: true},
	}
	full := podJSON(t, examplePod)
	annotations, _ := full["metadata"].(map[string]any)["annotations"].(map[string]any)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := full
			if strings.Contains(tc.wantErr, "bytes") {
				annotations["big"] = strings.Repeat("x", maxParameter+1)
				defer delete(annotations, "big")
			}
			all := []appsv1alpha1.Parameter{tc.parameter}
			require.Equal(t, tc.needs, NeedPod(all))
			if !tc.needs {
				pod = nil
			}
			got, err := Parameters(all, known, pod)
			if tc.wantErr != "" {
				require.ErrorContains(t, err, tc.wantErr)
				return
			}
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(map[string]string{"k": tc.want}, got))
		})
	}
}

func TestTheBodyHasTheFieldsOfKuperatorAndSomeMore(t *testing.T) {
	stage := appsv1alpha1.StagePostCheck
	tests := map[string]struct {
		check appsv1alpha1.TransitionRule
		want  string
	}{
		"without a stage": {appsv1alpha1.TransitionRule{Name: "check"},
			`{"traceId":"t","ruleName":"check","namespace":"ns","podTransitionRule":"rule","resources":[
			{"apiVersion":"core/v1","kind":"Pod","name":"a","parameters":{"k":"v"},"namespace":"ns","uid":"uid-a","operations":[{"id":"job","type":"update"}]}]}`},
		"with one": {appsv1alpha1.TransitionRule{Name: "check", Stage: &stage},
			`{"traceId":"t","ruleName":"check","stage":"PostCheck","namespace":"ns","podTransitionRule":"rule","resources":[
			{"apiVersion":"core/v1","kind":"Pod","name":"a","parameters":{"k":"v"},"namespace":"ns","uid":"uid-a","operations":[{"id":"job","type":"update"}]}]}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			body := NewBody("t", "ns", "rule", &tc.check)
			body.Resources = append(body.Resources, NewResource("ns", question("a", "1"), map[string]string{"k": "v"}))
			encoded, err := body.Encode()
			require.NoError(t, err)
			require.JSONEq(t, tc.want, string(encoded))
		})
	}
}
