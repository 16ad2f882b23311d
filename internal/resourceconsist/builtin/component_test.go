package builtin

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"kusionstack.io/kuperator/api/podops"
)

// What adapters read of a Pod has to pass: among it the ports that a Service may name.
func TestStripPodKeepsNamedPorts(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		Containers: []corev1.Container{
			{Name: "app", Image: "app:v1", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080,
				Protocol: corev1.ProtocolTCP, HostPort: 1}, {ContainerPort: 9}}},
			{Name: "quiet", Image: "quiet:v1"},
		},
		InitContainers: []corev1.Container{{Name: "sidecar",
			Ports: []corev1.ContainerPort{{Name: "tls", ContainerPort: 8443}}}},
		NodeName: "node-0",
		Volumes:  []corev1.Volume{{Name: "data"}},
	}, Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, Message: "long"},
		{Type: corev1.ContainersReady, Status: corev1.ConditionTrue},
		{Type: podops.ServiceReadyCondition, Status: corev1.ConditionFalse},
	}}}
	view := podops.Read(pod)
	stripped, err := stripPod(pod)
	require.NoError(t, err)
	want := corev1.PodSpec{
		Containers: []corev1.Container{{Name: "app",
			Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}}}},
		InitContainers: []corev1.Container{{Name: "sidecar",
			Ports: []corev1.ContainerPort{{Name: "tls", ContainerPort: 8443}}}},
		NodeName: "node-0",
	}
	conditions := []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: corev1.ContainersReady, Status: corev1.ConditionTrue},
		{Type: podops.ServiceReadyCondition, Status: corev1.ConditionFalse},
	}
	require.Empty(t, cmp.Diff(&corev1.Pod{Spec: want, Status: corev1.PodStatus{Conditions: conditions}}, stripped))
	require.Equal(t, view, podops.Read(pod))
}

func TestFlags(t *testing.T) {
	for name, tc := range map[string]struct {
		adapters []string
		drain    time.Duration
		want     string
	}{
		"the defaults are fine":         {[]string{"endpointslice"}, time.Second, ""},
		"no drain time is fine":         {[]string{"endpointslice"}, 0, ""},
		"no adapter":                    {nil, 0, "--adapters is empty"},
		"an unknown adapter":            {[]string{"slb"}, 0, `--adapters has "slb"`},
		"the same adapter twice":        {[]string{"endpointslice", "endpointslice"}, 0, "twice"},
		"an adapter that lacks a flag":  {[]string{"endpointslice", "haproxy"}, 0, "--haproxy-runtime is missing"},
		"a drain time that is negative": {[]string{"endpointslice"}, -1, "--drain-time"},
	} {
		t.Run(name, func(t *testing.T) {
			err := validate(builtIns(), tc.adapters, tc.drain)
			if tc.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.want)
			}
		})
	}
}
