package protocol_test

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

// The window of collaset-controller as an actor: decisions leave to it who begins, it hears of one Pod after the other,
// now and then later than the cache shows it, and the begin of a Pod is a separate step. What it knows may be lost.

var web = types.NamespacedName{Namespace: "default", Name: "web"}

// windowState is what collaset-controller knows beside its cache: a window, and what the last decision says of single
// Pods.
type windowState struct {
	window  *setplan.Window
	rollout *setplan.Rollout
	target  int8 // the generation, as far as the model has any
}

// windowVersion is the number of a windowState.
func (m *model) windowVersion(s windowState) int32 {
	key := fmt.Sprintf("%s %d", s.window, s.target)
	if s.rollout != nil {
		key += fmt.Sprintf(" %s %v", s.rollout.Updated, s.rollout.From)
	}
	id, ok := m.windowIndex[key]
	if !ok {
		id = int32(len(m.windows))
		m.windowIndex[key] = id
		m.windows = append(m.windows, s)
	}
	return id
}

// newWindow is what a process knows that has just begun.
func (m *model) newWindow() int32 {
	limits := setplan.DefaultLimits()
	limits.InFlight = m.places
	return m.windowVersion(windowState{window: setplan.NewWindow(limits)})
}

// windowed is what collaset-controller may do about updates by its window.
func (w *walk) windowed() {
	w.sees()
	if w.left.restarts > 0 {
		n := w.state
		n.left.restarts--
		n.collasetPods, n.window = w.pods, w.newWindow() // a new process reads everything afresh
		n.late, n.lateFrom = 0, 0
		w.add("chance: collaset starts anew", n)
	}
	w.decides()
	w.begins()
}

// know is the state in which collaset-controller knows this.
func (w *walk) know(s windowState) state {
	n := w.state
	n.window = w.windowVersion(s)
	return n
}

// knows is a copy of what collaset-controller knows.
func (w *walk) knows() windowState {
	s := w.windows[w.window]
	s.window = s.window.Copy()
	return s
}

// sees shows it one Pod as it is, of which the window hears as it does from events: at once, or after the cache has
// shown it for a while.
func (w *walk) sees() {
	if w.late > 0 { // events come in order
		i := int(w.late - 1)
		after := w.podVersions[w.collasetPods[i]]
		n := w.hears(i, w.podVersions[w.lateFrom], after)
		n.late, n.lateFrom = 0, 0
		w.add("collaset's window hears of "+after.view.Name, n)
		return
	}
	for i := range w.scenario.pods {
		if w.collasetPods[i] == w.pods[i] {
			continue
		}
		after := w.pod(i)
		n := w.hears(i, w.podVersions[w.collasetPods[i]], after)
		n.collasetPods[i] = w.pods[i]
		w.add("collaset sees "+after.view.Name, n)
		if w.left.lates > 0 {
			n := w.state
			n.left.lates--
			n.late, n.lateFrom = int8(i+1), w.collasetPods[i]
			n.collasetPods[i] = w.pods[i]
			w.add("chance: collaset's cache shows "+after.view.Name+", and its window has yet to hear of it", n)
		}
	}
}

// hears is the state in which the window has heard of a Pod.
func (w *walk) hears(i int, before, after podObject) state {
	s := w.knows()
	pod := w.windowPod(i, after)
	switch {
	case before.gone || after.gone || before.view.UID != after.view.UID:
	case setplan.Back(before.view, after.view):
		s.window.Back(web, pod.UID(), pod.View.ResourceVersion, now)
	case setplan.Lost(before.view, after.view):
		s.window.Lost(web)
	default:
		s.window.Moved(web, pod.UID(), setplan.NextIsOurs(&pod), now)
	}
	return w.know(s)
}

// windowPod is a Pod as collaset-controller reads it.
func (w *walk) windowPod(i int, p podObject) setplan.Pod {
	return setplan.Pod{
		View: p.view, ID: i, Revision: fmt.Sprintf("web-%d", p.revision), AllowedSince: now,
		Service: setplan.Service{Available: p.view.ServiceAvailable(), Scheduled: true},
		Marks:   setplan.Marks{Selected: true},
		Change:  setplan.Change{Recorded: p.recorded, Carried: p.recorded},
	}
}

// decides is a decision about the CollaSet.
func (w *walk) decides() {
	s := w.knows()
	snapshot := w.collaSetSnapshot()
	snapshot.MaxUnavailable = w.unavailable
	s.window.Hold(web, now)
	if !w.unforeseen {
		s.window.Foresee(web, snapshot.Pods)
	}
	plan := setplan.Decide(&snapshot)
	s.window.Planned(web, setplan.WindowPlanOf(&snapshot, &plan), now)
	s.rollout, s.target = plan.Rollout, w.target
	if n := w.know(s); n != w.state {
		w.add("collaset decides", n)
	}
}

// begins is the begin of each Pod that was chosen.
func (w *walk) begins() {
	for i := range w.scenario.pods {
		p := w.podVersions[w.collasetPods[i]]
		if p.gone {
			continue
		}
		s := w.knows()
		pod := w.windowPod(i, p)
		queued := s.window.Chosen(web, pod.UID())
		switch {
		case queued == nil || s.target != w.target:
			continue
		case !queued.MayBegin(s.rollout, &pod):
			s.window.Drop(web, pod.UID(), now)
			w.add("collaset drops "+pod.Name(), w.know(s))
			continue
		}
		change, err := podops.Begin(pod.View, queued.Request, p.at())
		begun := change.Apply(pod.View)
		if err != nil || !s.window.Send(web, &pod, &begun) {
			continue
		}
		if w.collasetPods[i] != w.pods[i] { // a conflict
			s.window.Failed(web, &pod)
			if n := w.know(s); n != w.state {
				w.add("collaset is refused to begin "+pod.Name(), n)
			}
			continue
		}
		next := p.changed(change)
		next.begun++
		n := w.know(s)
		n.pods[i] = w.podVersion(next)
		w.try("collaset begins "+pod.Name(), n, w.mayBegin(i))
	}
}

// mayBegin is what is wrong with taking one more Pod out of service, counted again on the Pods as they are.
func (w *walk) mayBegin(i int) error {
	if !w.pod(i).view.ServiceAvailable() {
		return nil // it costs no service
	}
	var under []string
	for j := range w.scenario.pods {
		if p := w.pod(j); j != i && !p.gone && (p.out() || podops.IsDuring(p.view, setplan.OperatorID, podops.TypeUpdate)) {
			under = append(under, p.view.Name)
		}
	}
	if len(under) >= w.unavailable {
		return fmt.Errorf("%s begins while %v are under way, maxUnavailable is %d", w.pod(i).view.Name, slices.Clone(under),
			w.unavailable)
	}
	return nil
}
