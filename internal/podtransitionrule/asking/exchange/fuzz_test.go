package exchange

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/podtransitionrule/grants"
)

// FuzzWebhookAnswer: whatever two servers say to a POST and a poll, nothing breaks, no Pod passes that was not asked
// about, and what goes to status is small and readable.
func FuzzWebhookAnswer(f *testing.F) {
	for _, post := range []string{
		"", "null", "{}", "[]", `{"success":true}`, `{"success":false,"message":"no","finishedNames":["a"]}`,
		`{"success":true,"poll":true,"taskId":"t"}`,
		`{"success":true,"async":true,"traceId":"t","finishedNames":null}`, `{"success":true,"poll":true}`,
		`{"SUCCESS":true}`,
		`{"success":true,"poll":true,"taskId":"\u0000\ud800"}`, `{"finishedNames":[null,"a","a"]}`, "\xff{",
		`{"success":1e999}`,
	} {
		for _, poll := range []string{"", `{"success":true,"finished":true}`, `{"stop":true}`,
			`{"finishedNames":["b","zz"],"message":"\u202e\n"}`, `{"finished":{}}`} {
			f.Add([]byte(post), []byte(poll), true)
		}
	}
	f.Fuzz(func(t *testing.T, post, poll []byte, ignore bool) {
		s := polling()
		s.Ignore = ignore
		i := New(s)
		i.Want(questions("a", "b"))
		r := next(t, i, at(0))
		answer, err := ParseAnswer(post)
		if err != nil {
			i.Failed(r, Failure{Reason: err.Error()}, at(0))
		} else {
			i.Answered(r, answer, at(0))
		}
		i.Known(written(t, i))
		if r, some := i.Next(at(5)); some && r.TaskID != "" {
			if polled, err := ParsePollAnswer(poll); err != nil {
				i.PollFailed(r, Failure{Reason: err.Error()}, at(5))
			} else {
				i.Polled(r, polled, at(5))
			}
		}
		got := map[grants.Subject]grants.Answer{}
		i.Answers(got)
		require.Len(t, got, 2)
		for s, a := range got {
			require.True(t, s == question("a", "1").Subject || s == question("b", "1").Subject)
			require.True(t, utf8.ValidString(a.Reason))
			require.LessOrEqual(t, len([]rune(a.Reason)), 2*maxMessage+100)
		}
		body, err := json.Marshal(i.State())
		require.NoError(t, err)
		require.Less(t, len(body), 8<<10)
	})
}

// FuzzParameters: any path into any Pod gives a value or an error that says which parameter is wrong.
func FuzzParameters(f *testing.F) {
	for _, path := range []string{
		"", ".", "..", "metadata", "metadata.name", "metadata.labels", "metadata.labels['app']", "metadata.labels['",
		"metadata.labels']", "['']", "metadata['labels']['app']",
		"status.podIP", "status.podIP.x", "spec.containers", "spec.containers.0.name", "spec.nope.nope",
		"metadata.annotations['a['b']']", "\x00", "metadata.labels['é']",
	} {
		f.Add(path, examplePod)
		f.Add(path, `{}`)
		f.Add(path, `{"metadata":{"labels":[1],"annotations":{"a":{}}},"status":null}`)
	}
	f.Fuzz(func(t *testing.T, path, pod string) {
		var full map[string]any
		if json.Unmarshal([]byte(pod), &full) != nil {
			full = nil
		}
		values, err := Parameters([]appsv1alpha1.Parameter{field(path)}, Pod{"ns", "p", "u"}, full)
		if err != nil {
			require.ErrorContains(t, err, `webhook parameter "k"`)
			return
		}
		require.Contains(t, values, "k")
		require.LessOrEqual(t, len(values["k"]), maxParameter)
	})
}
