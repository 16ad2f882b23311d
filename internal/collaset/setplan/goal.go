package setplan

import "slices"

// goalOf says where the set stands, once everything is decided.
func goalOf(replicas int, pods *members, notes *notes, isMoving, isReplacing bool, updates *updating) Goal {
	missing := pods.replicas() != replicas
	surplus := slices.ContainsFunc(pods.items, func(it *item) bool { return it.condemned })
	// lacking is what the Pod lacks that is furthest from being available, awaited the first of what such Pods wait for.
	lacking, awaited := LacksNothing, ""
	for _, it := range pods.live {
		if it.Available {
			continue
		}
		notes.look(it.AvailableIn)
		lack := unavailableReason(it.Pod)
		if lack > lacking {
			lacking, awaited = lack, ""
		}
		if lack == lacking && it.Awaited != "" && (awaited == "" || it.Awaited < awaited) {
			awaited = it.Awaited
		}
	}
	scaled := !missing && !surplus && !isMoving
	atRest := scaled && lacking == LacksNothing && !isReplacing && !notes.refused && !updates.underWay
	return Goal{
		ScaleReached:  scaled,
		UpdateReached: updates.waiting == 0,
		Replacing:     isReplacing,
		Lacking:       lacking,
		Awaited:       awaited,
		Held:          notes.refused,
		Refusal:       notes.refuses,
		UpdatesOnly:   updates.waiting > 0 && atRest,
	}
}

// unavailableReason says what a Pod that is not available lacks first.
func unavailableReason(pod *Pod) Lack {
	switch {
	case !pod.Scheduled:
		return LacksNode
	case pod.ReadySince.IsZero():
		return LacksReady
	case pod.AvailableIn > 0:
		return LacksTime
	}
	return LacksService
}
