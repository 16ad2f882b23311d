package protocol_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/collaset/setplan"
)

// This file has what collaset-controller does when it replaces Pods: IDs beyond the replicas are free, it creates Pods
// itself, and it remembers pairs in the ResourceContext.

// leaveRoom makes a set of the first replicas Pods: the other IDs are free.
func (m *model) leaveRoom(s *state) {
	var entries []setplan.Entry
	for i := range m.scenario.pods {
		if i < m.replicas {
			entries = append(entries, setplan.Entry{ID: i, Data: map[string]string{
				appsv1alpha1.ContextOwner: "web", appsv1alpha1.ContextRevision: "web-1",
			}})
			continue
		}
		p := m.newPod(i, 0)
		p.gone = true
		s.pods[i] = m.podVersion(p)
	}
	s.entries = m.context(entries)
	s.enginePods = s.pods
}

// context is the number of a content of the ResourceContext.
func (m *model) context(entries []setplan.Entry) int32 {
	raw, err := json.Marshal(entries)
	if err != nil {
		panic(err)
	}
	id, ok := m.contextIndex[string(raw)]
	if !ok {
		id = int32(len(m.contexts))
		m.contextIndex[string(raw)] = id
		m.contexts = append(m.contexts, entries)
	}
	return id
}

// describeSurge fills in Pods and entries.
func (w *walk) describeSurge(s *setplan.Snapshot) {
	s.Policy, s.MaxSurge = appsv1alpha1.PodUpdateReplace, 1
	for i := range w.scenario.pods {
		p := w.podVersions[w.collasetPods[i]]
		if p.gone {
			continue
		}
		has := func(key string) bool { _, ok := p.view.Labels[key]; return ok }
		s.Pods = append(s.Pods, setplan.Pod{
			View: p.view, ID: i, Revision: fmt.Sprintf("web-%d", p.revision), AllowedSince: now,
			Service: setplan.Service{Available: p.view.ServiceAvailable() || w.hopeful, Scheduled: true},
			Marks: setplan.Marks{
				Selected: true, ToDelete: has(appsv1alpha1.ToDeleteLabel),
				Replacing: has(appsv1alpha1.ToReplaceLabel) || has(appsv1alpha1.ReplacePairNewIDLabel) ||
					has(appsv1alpha1.ReplacePairOriginNameLabel),
			},
		})
	}
	s.Entries = w.contexts[w.entries]
}

// storedBefore is the ResourceContext once a plan's action was taken: what an action depends on is stored before it.
func (w *walk) storedBefore(verb string, plan setplan.Plan) int32 {
	if plan.EntriesFirst && !w.forgetful && (verb == "deletes" || verb == "creates") {
		return w.context(plan.Entries)
	}
	return w.entries
}

// surges are the steps that only replacing needs.
func (w *walk) surges(act func(string, *setplan.Pod, func(*podObject) error), plan setplan.Plan) {
	if plan.EntriesChanged {
		n := w.state
		n.entries = w.context(plan.Entries)
		w.add("collaset stores the ResourceContext", n)
	}
	for _, c := range plan.Creations {
		if w.collasetPods[c.ID] != w.pods[c.ID] {
			continue // its cache is behind its own writes
		}
		next := w.newPod(c.ID, w.pod(c.ID).born+1)
		if _, err := fmt.Sscanf(c.Revision, "web-%d", &next.revision); err != nil {
			panic(err)
		}
		if c.Origin != "" {
			next.view.Labels[appsv1alpha1.ReplacePairOriginNameLabel] = c.Origin
		}
		n := w.with(c.ID, next)
		n.ahead, n.entries = true, w.storedBefore("creates", plan)
		w.add("collaset creates "+next.view.Name, n)
	}
	for _, pod := range plan.Marks {
		act("marks", pod, func(p *podObject) error {
			value := "true"
			*p = p.labelled(map[string]*string{appsv1alpha1.ToDeleteLabel: &value})
			return nil
		})
	}
	for _, l := range plan.Labels {
		act("labels", l.Pod, func(p *podObject) error {
			*p = p.changed(l.Change)
			return nil
		})
	}
}

// checkSurge: there is always a Pod that serves, or chance has taken one away, or users have; and never more than two
// for one replica.
func (m *model) checkSurge(s state) error {
	live, serving := 0, 0
	for i := range m.scenario.pods {
		p := m.podVersions[s.pods[i]]
		if p.gone || p.view.Terminating {
			continue
		}
		live++
		if serves(p) {
			serving++
		}
	}
	disturbed := s.left.evictions < m.evictions || s.left.marks < m.marks || s.left.losses < m.losses
	switch {
	case live > m.replicas+1:
		return fmt.Errorf("%d Pods for %d replicas", live, m.replicas)
	case serving < m.replicas && !disturbed:
		return errors.New("the old Pod has gone before the new one serves")
	}
	return nil
}

// surgeOver reports whether nothing tells of a replacement any more.
func (m *model) surgeOver(s state) bool {
	for i := range m.scenario.pods {
		p := m.podVersions[s.pods[i]]
		for _, key := range []string{appsv1alpha1.ToReplaceLabel, appsv1alpha1.ReplacePairNewIDLabel,
			appsv1alpha1.ReplacePairOriginNameLabel} {
			if _, left := p.view.Labels[key]; left && !p.gone {
				return false
			}
		}
	}
	entries := m.contexts[s.entries]
	return len(entries) == m.replicas && !slices.ContainsFunc(entries, func(e setplan.Entry) bool {
		return e.Data[appsv1alpha1.ContextReplaceOriginPodID]+e.Data[appsv1alpha1.ContextReplaceNewPodID] != ""
	})
}
