package collaset

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

// The API server refuses an event whose note has more than 1,024 bytes.
func TestNotesOfEventsAreBoundedInBytes(t *testing.T) {
	w := newWorld(t, true, collaSet(1))
	o := &observation{set: w.set(), pod: func(string) *corev1.Pod { return nil }}
	refusal := strings.Repeat("配额不足", 500)
	ended := []*setplan.Pod{{View: podops.View{Name: "web-0"}, Ended: refusal}}
	reporter{w.r.server}.recordEvents(o, &outcome{ended: ended}, setplan.Outcome{Update: errors.New(refusal)})

	told := w.told()
	require.Len(t, told, 2)
	for i, reason := range []string{"PodEnded", "UpdateFailed"} {
		note, found := strings.CutPrefix(told[i], corev1.EventTypeWarning+" "+reason+" ")
		require.True(t, found, told[i])
		assert.LessOrEqual(t, len(note), 1024)
		assert.Contains(t, note, "配额不足", "it tells something")
	}
}
