// Package history keeps every state of objects that the API server shows, for tests that are about something that is so
// for a moment only. A test that asks for the present state again and again misses it on a busy machine; a watch misses
// nothing.
package history

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kusionstack.io/kuperator/internal/testkit/await"
)

// Of is the history of some objects, in the order of their changes.
type Of[T client.Object] struct {
	t  testing.TB
	mu sync.Mutex
	// states are those since the recording began; the first are what there was then.
	states []T
}

// Record begins with the objects that the list gives with these options, and records until the test is over. What was
// deleted stays in the history with its last state.
func Record[T client.Object](
	t testing.TB, c client.WithWatch, list client.ObjectList, options ...client.ListOption,
) *Of[T] {
	t.Helper()
	if err := c.List(t.Context(), list, options...); err != nil {
		t.Fatalf("listing what is to be recorded: %v", err)
	}
	h := &Of[T]{t: t}
	if err := meta.EachListItem(list, func(item runtime.Object) error { h.add(item); return nil }); err != nil {
		t.Fatal(err)
	}
	from := &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}}
	w, err := c.Watch(t.Context(), list, append(options, from)...)
	if err != nil {
		t.Fatalf("watching what is to be recorded: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		h.follow(ctx, w)
	}()
	return h
}

func (h *Of[T]) follow(ctx context.Context, w watch.Interface) {
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case event, open := <-w.ResultChan():
			if !open {
				return // a test lasts for less than a watch
			}
			h.add(event.Object)
		}
	}
}

func (h *Of[T]) add(object runtime.Object) {
	if state, ok := object.DeepCopyObject().(T); ok {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.states = append(h.states, state)
	}
}

// All are the states so far.
func (h *Of[T]) All() []T {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]T(nil), h.states...)
}

// Until waits until an object has been so, now or at any time since the recording began, and returns that state. It
// fails the test if none ever is.
func (h *Of[T]) Until(what string, is func(T) bool) T {
	h.t.Helper()
	var found T
	looked := 0
	await.Nil(h.t, what, func() error {
		states := h.All()
		for _, state := range states[looked:] {
			if is(state) {
				found = state
				return nil
			}
		}
		looked = len(states)
		return fmt.Errorf("it is in none of %d states", looked)
	})
	return found
}
