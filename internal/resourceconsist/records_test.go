package resourceconsist

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/resourceconsist/traffic"
)

func TestAPodThatServesHasNoRecord(t *testing.T) {
	r, pod, now := newRecords(), webPod(), time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	key := client.ObjectKeyFromObject(pod)
	serving := podops.View{Gate: true, Ready: true, ServiceReady: corev1.ConditionTrue}
	leaving := serving
	leaving.ServiceReady, leaving.Ready = corev1.ConditionFalse, false

	r.saw(pod, serving, now)
	r.idle(pod, "web/proxy", true, now)
	r.waits(pod, nil)
	require.False(t, r.has(key))

	require.Equal(t, now, r.saw(pod, leaving, now))
	require.Equal(t, now, r.saw(pod, leaving, now.Add(time.Second)))
	require.Equal(t, now, r.idle(pod, "web/proxy", false, now))
	r.waits(pod, []traffic.Wait{{Reason: traffic.WaitDraining}})
	require.Equal(t, 1, r.waiting()[traffic.WaitDraining])

	require.Zero(t, r.idle(pod, "web/proxy", true, now))
	r.waits(pod, nil)
	require.True(t, r.has(key), "since when it is out is still to be known")
	require.Zero(t, r.saw(pod, serving, now))
	require.False(t, r.has(key))
	require.Zero(t, r.waiting()[traffic.WaitDraining])

	r.saw(pod, leaving, now)
	successor := webPod()
	successor.UID = "another"
	require.Zero(t, r.saw(successor, serving, now.Add(time.Minute)))
	require.Equal(t, now.Add(time.Minute), r.saw(successor, leaving, now.Add(time.Minute)),
		"another Pod's record is not its own")
}
