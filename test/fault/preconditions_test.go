package fault

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"kusionstack.io/kuperator/internal/testkit/faultproxy"
)

// founded checks the writes of one process, in the order in which it made them: whatever destroys names the object
// that it means and how that looked, and nothing is written on the base of an object that is older than what the
// process itself was answered before. It returns how often it had something to check.
func founded(writes []faultproxy.Write) (preconditions, ownSeen int, problems []error) {
	newest := map[string]faultproxy.Write{}
	for _, w := range writes {
		if destroys(w) {
			preconditions++
			if w.UID == "" || w.ResourceVersion == "" {
				problems = append(problems, fmt.Errorf("%s lacks a precondition", w))
			}
		}
		at := fmt.Sprintf("%d %s.%s %s/%s", w.Life, w.Resource, w.Group, w.Namespace, w.Name)
		if last, ok := newest[at]; ok && w.ResourceVersion != "" && last.Answered.Before(w.At) {
			ownSeen++
			if older(w.ResourceVersion, last.Result) {
				problems = append(problems, fmt.Errorf("%s is based on an older object than %s, which it was answered before", w,
					last.Result))
			}
		}
		// Of what was committed and not answered the process knows nothing.
		if w.Committed() && w.Result != "" && w.Fault != faultproxy.DropReply && w.Fault != faultproxy.TimeoutAfterCommit {
			newest[at] = w
		}
	}
	return preconditions, ownSeen, problems
}

// founded checks what all components wrote about a plan.
func (o *outcome) founded() {
	for _, proc := range o.play.processes() {
		preconditions, ownSeen, problems := founded(o.play.ownWrites(proc))
		o.mu.Lock()
		o.checks["preconditions"] += preconditions
		o.checks["own writes seen"] += ownSeen
		for _, problem := range problems {
			o.failures = append(o.failures, fmt.Sprintf("preconditions: %s: %s", proc.component, problem))
		}
		o.mu.Unlock()
	}
}

// destroys reports whether a write ends something that runs: a deletion, an eviction, another image.
func destroys(w faultproxy.Write) bool {
	switch {
	case w.Verb == "delete" || w.Verb == "deletecollection" || w.Subresource == "eviction":
		return true
	case w.Resource == "pods" && w.Subresource == "":
		return w.Verb == "update" || w.Verb == "patch" && bytes.Contains(w.Body, []byte(`"image"`))
	default:
		return false
	}
}

func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

func TestUnfoundedWritesAreFound(t *testing.T) {
	start := time.Now()
	// write is number i of a process, answered at once.
	write := func(i int, verb, on, result string, with ...func(*faultproxy.Write)) faultproxy.Write {
		at := start.Add(time.Duration(i) * time.Second)
		w := faultproxy.Write{
			At: at, Answered: at.Add(time.Millisecond), Verb: verb, Resource: "pods", Namespace: "ns", Name: "a", UID: "u",
			ResourceVersion: on, Code: 200, Result: result,
		}
		for _, change := range with {
			change(&w)
		}
		return w
	}
	body := func(text string) func(*faultproxy.Write) {
		return func(w *faultproxy.Write) { w.Body = []byte(text) }
	}
	fault := func(f faultproxy.Action) func(*faultproxy.Write) { return func(w *faultproxy.Write) { w.Fault = f } }
	const image, label = `{"spec":{"containers":[{"name":"a","image":"b"}]}}`, `{"metadata":{"labels":{"a":"b"}}}`
	tests := map[string]struct {
		writes []faultproxy.Write
		want   []string
	}{
		"each on the last": {[]faultproxy.Write{write(1, "patch", "5", "6", body(label)),
			write(2, "patch", "6", "7", body(image)), write(3, "delete", "7", "8")}, nil},
		"deletion of anything": {[]faultproxy.Write{write(1, "delete", "5", "6",
			func(w *faultproxy.Write) { w.UID = "" })}, []string{"lacks a precondition"}},
		"image of however it looks": {[]faultproxy.Write{write(1, "patch", "", "6", body(image))},
			[]string{"lacks a precondition"}},
		"label of however it looks": {[]faultproxy.Write{write(1, "patch", "", "6", body(label))}, nil},
		"on what was before": {[]faultproxy.Write{write(1, "patch", "5", "6", body(label)),
			write(2, "patch", "5", "", body(label))}, []string{"is based on an older object than 6"}},
		"by number, not by text": {[]faultproxy.Write{write(1, "patch", "9", "10", body(label)),
			write(2, "patch", "9", "", body(label))}, []string{"is based on an older object than 10"}},
		"the answer did not come": {[]faultproxy.Write{write(1, "patch", "5", "6", body(label),
			fault(faultproxy.DropReply)), write(2, "patch", "5", "", body(label))}, nil},
		"the answer came too late": {[]faultproxy.Write{write(1, "patch", "5", "6", body(label),
			fault(faultproxy.TimeoutAfterCommit)), write(2, "patch", "5", "", body(label))}, nil},
		"the answer was under way": {[]faultproxy.Write{
			write(1, "patch", "5", "6", body(label), func(w *faultproxy.Write) { w.Answered = start.Add(time.Minute) }),
			write(2, "patch", "5", "", body(label)),
		}, nil},
		"after a restart": {[]faultproxy.Write{write(1, "patch", "5", "6", body(label)),
			write(2, "patch", "5", "", body(label), func(w *faultproxy.Write) { w.Life = 1 })}, nil},
		"of another": {[]faultproxy.Write{write(1, "patch", "5", "6", body(label)),
			write(2, "patch", "5", "", body(label), func(w *faultproxy.Write) { w.Name = "b" })}, nil},
		"what was refused is not known": {[]faultproxy.Write{
			write(1, "patch", "5", "6", body(label), func(w *faultproxy.Write) { w.Code = 409 }),
			write(2, "patch", "5", "6", body(label)),
		}, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, _, problems := founded(tc.writes)
			err := errors.Join(problems...)
			if len(tc.want) == 0 {
				assert.NoError(t, err)
			}
			for _, want := range tc.want {
				assert.ErrorContains(t, err, want)
			}
			assert.Len(t, problems, len(tc.want))
		})
	}
	preconditions, ownSeen, _ := founded(tests["each on the last"].writes)
	assert.Equal(t, [2]int{2, 2}, [2]int{preconditions, ownSeen}, "what there was to check")
}
