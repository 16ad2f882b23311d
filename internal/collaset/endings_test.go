package collaset

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

func TestWaitBetweenEndings(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	var e restartBackoff
	uid := 0
	measure := func(id int, since time.Duration) time.Duration {
		pods := []setplan.Pod{{View: podops.View{UID: types.UID(fmt.Sprint(uid)), Terminal: true}, ID: id}}
		e.measure(pods, now.Add(since))
		return pods[0].Again
	}
	at := time.Duration(0)
	for i, want := range []time.Duration{0, 10, 20, 40, 80, 160, 300, 300} {
		uid++
		assert.Equal(t, want*time.Second, measure(3, at), "ending %d", i+1)
		assert.Equal(t, max(want-4, 0)*time.Second, measure(3, at+4*time.Second), "the same Pod is not counted twice")
		at += want * time.Second
		assert.Zero(t, measure(3, at), "and then it may")
	}
	uid++
	assert.Zero(t, measure(4, at), "another ID has nothing to do with it")
	uid++
	assert.Zero(t, measure(3, at+backoffReset+time.Second), "long ago is forgotten")
	assert.Len(t, e.ids, 1)
	assert.Len(t, e.counted, 1)
}

func TestHowAPodEnded(t *testing.T) {
	terminated := func(code int32) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: fmt.Sprint("c", code),
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error"}}}
	}
	for want, status := range map[string]corev1.PodStatus{
		"ran to its end, all containers succeeded": {Phase: corev1.PodSucceeded},
		"failed, Evicted: low on memory":           {Phase: corev1.PodFailed, Reason: "Evicted", Message: "low on memory"},
		"failed, Evicted":                          {Phase: corev1.PodFailed, Reason: "Evicted"},
		"failed, container c3 exited with 3 (Error)": {Phase: corev1.PodFailed,
			ContainerStatuses: []corev1.ContainerStatus{terminated(0), terminated(3)}},
		"failed": {Phase: corev1.PodFailed},
	} {
		assert.Equal(t, want, ended(&corev1.Pod{Status: status}))
	}
}

func TestWhichContainerFails(t *testing.T) {
	waiting := func(name, reason, message string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}
	}
	runs := corev1.ContainerStatus{Name: "app", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	for name, tc := range map[string]struct {
		inits, containers []corev1.ContainerStatus
		want              string
	}{
		"no status yet":            {},
		"all run":                  {containers: []corev1.ContainerStatus{runs}},
		"starts":                   {containers: []corev1.ContainerStatus{waiting("app", "ContainerCreating", "")}},
		"waits for init container": {containers: []corev1.ContainerStatus{waiting("app", "PodInitializing", "")}},
		"an image": {containers: []corev1.ContainerStatus{waiting("app", "ImagePullBackOff", "Back-off 10s")},
			want: "container app cannot start: its image web:1 cannot be pulled"},
		"a crash": {containers: []corev1.ContainerStatus{runs, waiting("app", "CrashLoopBackOff", "back-off 40s")},
			want: "container app ends again and again"},
		"a Secret": {containers: []corev1.ContainerStatus{waiting("app", "CreateContainerConfigError", "no secret a")},
			want: "container app cannot start: no secret a"},
		"its runtime": {containers: []corev1.ContainerStatus{waiting("app", "RunContainerError", "context 0xc0de")},
			want: "container app cannot start: RunContainerError"},
		"init containers first": {inits: []corev1.ContainerStatus{waiting("setup", "ErrImagePull", "")},
			containers: []corev1.ContainerStatus{waiting("app", "PodInitializing", "")},
			want:       "container setup cannot start: its image setup:1 cannot be pulled"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{
				Spec: corev1.PodSpec{InitContainers: []corev1.Container{{Name: "setup", Image: "setup:1"}},
					Containers: []corev1.Container{{Name: "app", Image: "web:1"}}},
				Status: corev1.PodStatus{InitContainerStatuses: tc.inits, ContainerStatuses: tc.containers},
			}
			assert.Equal(t, tc.want, failingContainer(pod))
		})
	}
}
