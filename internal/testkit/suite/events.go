package suite

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Event is what a component said about a Pod.
type Event struct {
	Component, Reason, Message string
	// Times is how often it was said.
	Times int
	First time.Time
}

// PodEvents returns the components' events about the Pods of a namespace, by
// Pod, as the API server keeps them.
func (s *Suite) PodEvents(ctx context.Context, namespace string) (map[types.UID][]Event, error) {
	clients, err := s.Clients()
	if err != nil {
		return nil, err
	}
	list, err := clients.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing events: %w", err)
	}
	events := map[types.UID][]Event{}
	for i := range list.Items {
		e := &list.Items[i]
		component := e.ReportingController
		if component == "" {
			component = e.Source.Component
		}
		if e.InvolvedObject.Kind != "Pod" || !slices.Contains(Components(), component) {
			continue
		}
		events[e.InvolvedObject.UID] = append(events[e.InvolvedObject.UID], Event{
			Component: component, Reason: e.Reason, Message: e.Message, Times: times(e), First: e.CreationTimestamp.Time,
		})
	}
	return events, nil
}

func times(e *corev1.Event) int {
	if e.Series != nil {
		return int(e.Series.Count)
	}
	return max(1, int(e.Count))
}
