package suite

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

const auditLog = `{"verb":"patch","user":{"username":"system:serviceaccount:kuperator-system:lifecycle-controller"},"userAgent":"lifecycle-controller/v1","requestURI":"/api/v1/namespaces/a/pods/p/status","objectRef":{"resource":"pods","subresource":"status","namespace":"a","name":"p"},"responseStatus":{"code":200},"responseObject":{"metadata":{"uid":"u","name":"p","resourceVersion":"7"}},"requestReceivedTimestamp":"2026-01-02T03:04:05.000001Z","stageTimestamp":"2026-01-02T03:04:05.250001Z"}
{"verb":"patch","user":{"username":"system:serviceaccount:kuperator-system:collaset-controller"},"objectRef":{"resource":"pods","namespace":"a","name":"p"},"responseStatus":{"code":200},"responseObject":{"metadata":{"uid":"u","name":"p","resourceVersion":"7"}},"requestReceivedTimestamp":"2026-01-02T03:04:06.000001Z"}
{"verb":"patch","user":{"username":"system:serviceaccount:kuperator-system:collaset-controller"},"objectRef":{"resource":"pods","namespace":"a","name":"p"},"responseStatus":{"code":409},"responseObject":{"metadata":{}},"requestReceivedTimestamp":"2026-01-02T03:04:07.000001Z"}
{"verb":"update","user":{"username":"system:serviceaccount:kuperator-system:collaset-controller"},"objectRef":{"resource":"leases","apiGroup":"coordination.k8s.io","namespace":"kuperator-system","name":"collaset-controller"},"responseStatus":{"code":200},"requestReceivedTimestamp":"2026-01-02T03:04:08.000001Z"}
{"verb":"create","user":{"username":"system:serviceaccount:other:collaset-controller"},"objectRef":{"resource":"pods","namespace":"a"},"responseStatus":{"code":403},"requestReceivedTimestamp":"2026-01-02T03:04:09.000001Z"}
{"verb":"get","user":{"username":"admin"},"objectRef":{"resource":"pods","name":"p"},"responseStatus":{"code":200},"requestReceivedTimestamp":"2026-01-02T03:04:10.000001Z"}
{"verb":"patch","user":{"username":"system:serviceaccount:kuperator-system:collaset-controller"},"requestURI":"/api/v1/namespaces/a/pods/p?dryRun=All","objectRef":{"resource":"pods","namespace":"a","name":"p"},"requestObject":[{"op":"test","path":"/metadata/uid","value":"u"}],"responseStatus":{"code":200},"responseObject":{"metadata":{"uid":"u","name":"p","resourceVersion":"7"}},"requestReceivedTimestamp":"2026-01-02T03:04:11.000001Z"}
{"verb":"delete","user":{"username":"system:serviceaccount:kuperator-system:collaset-controller"},"requestURI":"/api/v1/namespaces/a/pods/p","objectRef":{"resource":"pods","namespace":"a","name":"p"},"requestObject":{"kind":"DeleteOptions","dryRun":["All"]},"responseStatus":{"code":200},"requestReceivedTimestamp":"2026-01-02T03:04:12.000001Z"}
{"verb":"patch","user":{"username":"unfinished`

func TestPodWritesCountsEffectsConflictsAndWritesThatChangeNothing(t *testing.T) {
	requests, err := readAudit(strings.NewReader(auditLog), time.Time{})
	require.NoError(t, err)
	require.Len(t, requests, 8)
	require.Equal(t, 250*time.Millisecond, requests[0].Took)

	require.True(t, requests[4].Unauthorized, "403, and nothing says that a role allows it")

	counts := PodWrites(requests)

	want := map[string]Counts{
		Lifecycle: {Writes: 1, Kinds: map[string]int{"patch pods/status": 1}},
		CollaSet:  {Writes: 1, NoOps: 1, Conflicts: 1, Trials: 2, Kinds: map[string]int{"patch pods": 2}},
		"system:serviceaccount:other:collaset-controller": {Refused: 1, Kinds: map[string]int{"create pods": 1}},
	}
	if diff := cmp.Diff(want, counts); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	require.Equal(t, 3, Sum(counts).Total())
	require.Equal(t, 3, Writes(requests)[CollaSet].Total(), "the Lease counts as a write, but not to Pods")
}

func TestRefusedByAdmissionIsNotUnauthorized(t *testing.T) {
	for decision, want := range map[string]bool{"allow": false, "forbid": true} {
		line := `{"verb":"create","objectRef":{"resource":"pods"},"responseStatus":{"code":403},"annotations":{"authorization.k8s.io/decision":"` + decision + `"}}`
		requests, err := readAudit(strings.NewReader(line+"\n"), time.Time{})
		require.NoError(t, err)
		require.Len(t, requests, 1)
		require.Equal(t, want, requests[0].Unauthorized, decision)
	}
}

func TestReaderReadsEachRequestOnceAndKnowsEarlierAnswers(t *testing.T) {
	lines := strings.SplitAfter(auditLog, "\n")
	path := filepath.Join(t.TempDir(), "audit.log")
	reader := &AuditReader{path: path, seen: answers{}}
	for i, want := range []int{1, 7} {
		content := strings.Join(lines[:1+8*i], "") // the last line is unfinished
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		requests, err := reader.Next()
		require.NoError(t, err)
		require.Len(t, requests, want)
		if i == 1 {
			require.True(t, requests[0].NoOp, "its answer was that of the first request")
		}
	}
	requests, err := reader.Next()
	require.NoError(t, err)
	require.Empty(t, requests)
}

func TestRequestsOfAnEarlierTimeStillTellNoOps(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC)
	requests, err := readAudit(strings.NewReader(auditLog), since)
	require.NoError(t, err)
	require.Equal(t, 1, PodWrites(requests)[CollaSet].NoOps)
	require.NotContains(t, PodWrites(requests), Lifecycle)
}
