package main

import (
	"fmt"
	"slices"

	"kusionstack.io/kuperator/api/podops"
)

// acts are the demo's stages, in order.
func acts() []stage {
	toImage := func(image string) string {
		return fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":%q,"image":%q}]}}}}`, name, image)
	}
	return []stage{
		{
			title: fmt.Sprintf("create %d Pods of %s", replicas, oldImage), column: "create", replicas: replicas,
			image: oldImage,
			why: fmt.Sprintf("A CollaSet, a Service, and a rule: at most %s of the Pods may be out of service at once, "+
				"whichever program takes them out.", maxUnavailable),
		},
		{
			title: fmt.Sprintf("update %s to %s, in place", oldImage, newImage), column: "update", replicas: replicas,
			image: newImage, operated: replicas, patch: toImage(newImage), acting: "may it change",
			why: "Each Pod asks first. When the rule lets it go, its traffic is taken off, its container is restarted with " +
				"the new image, and it counts as available again only when traffic is back.",
		},
		{
			title: fmt.Sprintf("update to %s, an image that cannot be pulled", badImage), column: "bad", replicas: replicas,
			image: badImage, patch: toImage(badImage), stuck: true, acting: "may it change",
			why: "A mistake. The first Pods that take the image never become ready, so the budget is used up: the rollout " +
				"stops there by itself, and the other Pods keep serving.",
		},
		{
			title: fmt.Sprintf("undo: put %s back", newImage), column: "undo", replicas: replicas, image: newImage,
			patch: toImage(newImage), undoes: true, acting: "may it change",
			why: "The Pods that were broken are changed back in the operation under way. The others were never touched.",
		},
		{
			title: fmt.Sprintf("restart %d of them in place, by an OperationJob", restarted), column: "restart",
			replicas: replicas, image: newImage, operated: restarted, restarts: true, acting: "is its container restarted",
			why: "Another program operates on the same Pods. It asks the same rule, so the budget holds for both.",
		},
		{
			title: fmt.Sprintf("scale in from %d to %d", replicas, fewer), column: "scale in", replicas: fewer, image: newImage,
			operated: replicas - fewer, patch: fmt.Sprintf(`{"spec":{"replicas":%d}}`, fewer), acting: "is it deleted",
			why: "A Pod that goes for good is out of traffic before it is deleted, and the budget counts it too.",
		},
		{
			title: fmt.Sprintf("roll back to %s", oldImage), column: "rollback", replicas: fewer, image: oldImage,
			operated: fewer, patch: toImage(oldImage), acting: "may it change",
			why: fmt.Sprintf("An update like any other. One Pod at a time, because the CollaSet's own maxUnavailable is 25%% "+
				"of %d Pods, rounded down; the stricter of the two budgets holds.", fewer),
		},
	}
}

// phaseOrder is the way of an operation, as far as it is told.
var phaseOrder = []podops.Phase{podops.PhaseNone, podops.PhasePreCheck, podops.PhasePreparing, podops.PhaseOperate,
	podops.PhasePostCheck, podops.PhaseCompleting}

// narrator tells what happens in one act: of each phase once, by the first Pod that is seen in it.
type narrator struct {
	acting string // what a Pod may do in phase Operate
	told   int    // index in phaseOrder
	stuck  bool   // that a blocker is there has been told
}

// newNarrator begins where the act does: one that undoes finds Pods in the middle of their operation.
func newNarrator(s *stage) narrator {
	n := narrator{acting: s.acting}
	if s.undoes {
		n.told = slices.Index(phaseOrder, podops.PhaseOperate)
	}
	return n
}

// tell returns what is new in the picture, as a sentence each.
func (n *narrator) tell(p picture) []string {
	var news []string
	for i := n.told + 1; i < len(phaseOrder); i++ {
		at := slices.IndexFunc(p.rows, func(r row) bool { return r.phase == string(phaseOrder[i]) })
		if at < 0 {
			continue
		}
		n.told = i
		news = append(news, n.sentence(phaseOrder[i], p.rows[at].name))
	}
	if p.failing != "" && !n.stuck {
		n.stuck = true
		news = append(news, fmt.Sprintf("the rollout waits, blocker %s; %d of %d Pods still serve",
			containersFail, p.serving(), len(p.rows)))
	}
	return news
}

func (n *narrator) sentence(phase podops.Phase, pod string) string {
	switch phase {
	case podops.PhasePreCheck:
		return pod + " asks whether it may go, and serves meanwhile"
	case podops.PhasePreparing:
		return "the rule lets " + pod + " go; its traffic is being taken off"
	case podops.PhaseOperate:
		return pod + " is out of traffic; only now " + n.acting
	case podops.PhasePostCheck:
		return pod + " has done what was asked; may it return?"
	case podops.PhaseCompleting:
		return pod + " has done what was asked; its traffic is put back"
	default:
		return ""
	}
}
