package podops_test

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/api/podops"
)

// FuzzAnnotations: users write these by hand. What cannot be read excuses from
// nothing and is never overwritten; what can be read is kept beside what is added.
func FuzzAnnotations(f *testing.F) {
	for _, seed := range []string{
		"", "null", "{}", "[]", `"x"`, "{", `{"expectedFinalizers":null}`,
		`{"expectedFinalizers":{"Service/d/s":"prot.podopslifecycle.kusionstack.io/x"}}`,
		`{"expectedFinalizers":{"":""}}`, `{"expectedFinalizers":{"a":1}}`, `{"expectedFinalizers":["a"]}`,
		`{"skipRules":["a","b"]}`, `{"skipRules":"a"}`,
		`{"Preparing":{"after":"10m","policy":"Cancel"}}`, `{"Operate/update":{"after":"-1s"}}`,
		`{"Nowhere":{"after":"soon","policy":"Explode"}}`,
		`{"PreCheck":{"after":"9999999h","policy":"Proceed"}}`, `{"PostCheck/":{"after":"1s"}}`, "\xff",
		`{"skipRules":["a"]} trailing`,
	} {
		f.Add(seed, "Service/default/web")
	}
	f.Fuzz(func(t *testing.T, raw, name string) {
		v := podops.View{Annotations: map[string]string{
			podops.AvailableConditionsAnnotation: raw, podops.SkipRulesAnnotation: raw, podops.DeadlinesAnnotation: raw,
		}}
		if v.SkipsRule(name) {
			require.True(t, json.Valid([]byte(raw)))
		}
		deadlines, _ := podops.ParseDeadlines(v.Annotations)
		for key, d := range deadlines {
			require.GreaterOrEqual(t, int64(d.After), int64(0), "%v", key)
			require.NotEmpty(t, d.Policy)
		}
		before, err := podops.ExpectedFinalizers(v.Annotations)
		c, expectErr := podops.Expect(v, name, cooperatorsFinalizer)
		if err != nil {
			require.Error(t, expectErr)
			require.True(t, c.IsZero(), "what cannot be read was overwritten")
			return
		}
		require.NoError(t, expectErr)
		v = c.Apply(v)
		after, err := podops.ExpectedFinalizers(v.Annotations)
		require.NoError(t, err)
		if utf8.ValidString(name) { // other names are none of the API server's
			require.Equal(t, cooperatorsFinalizer, after[name])
		}
		for employer, finalizer := range before {
			require.True(t, employer == name || after[employer] == finalizer, "%q was lost", employer)
		}
		_, err = podops.Forget(v, name, start)
		require.NoError(t, err)
	})
}

// FuzzDeadlineFlag: a flag is read as it is written, or refused.
func FuzzDeadlineFlag(f *testing.F) {
	for _, seed := range []string{"", "=", "Preparing=10m", "Operate/update=1h,Cancel", "PostCheck=0s,Proceed",
		"PreCheck/=1s", "Completing/a/b=1s,Wait", "Preparing=1s,,"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, flag string) {
		key, d, err := podops.ParseDeadline(flag)
		if err != nil {
			require.Zero(t, d)
			return
		}
		again, err := podops.ParseDeadlines(map[string]string{podops.DeadlinesAnnotation: string(annotationOf(t, key, d))})
		require.NoError(t, err)
		require.Equal(t, podops.Deadlines{key: d}, again, "the annotation means the same as the flag")
	})
}

func annotationOf(t *testing.T, key podops.DeadlineKey, d podops.Deadline) []byte {
	name := string(key.Phase)
	if key.Type != "" {
		name += "/" + key.Type
	}
	raw, err := json.Marshal(map[string]map[string]string{name: {"after": d.After.String(), "policy": string(d.Policy)}})
	require.NoError(t, err)
	return raw
}
