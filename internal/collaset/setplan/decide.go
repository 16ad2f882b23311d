package setplan

import "slices"

// maxBlockers bounds the reasons in status.
const maxBlockers = 16

// findings are what passes from one question to the next. Each adds to what it was given.
type findings struct {
	pods   *members
	ledger *ledger
	claims *claimIndex
	api    *asking
	notes  *notes
	// do is what is to be done to Pods.
	do *PodActions
	// isMoving is true if the plan excludes or includes Pods.
	isMoving bool
}

// Decide answers what is due, question by question: what one finds is given to the next, and each says in PodActions
// or ClaimActions what it wants done. Its cost is O(Pods log Pods) for one sort by ID; everything else is linear.
//
// Where two questions want different things of a Pod, the one that is asked first has it. The others see that in what
// is known of the Pod by then: that it is excluded, condemned, or one half of a pair.
func Decide(s *Snapshot) Plan {
	notes := &notes{now: s.Now, blockers: map[string]*Blocker{}}
	claims := newClaimIndex(s, notes)
	pods := newMembers(s, claims)
	if s.Deleting {
		plan := reclaim(s, pods, claims, notes)
		notes.tell(&plan)
		return plan
	}
	plan := Plan{Problem: problemOf(&s.Identity, s.Replicas)}
	api := &asking{History: &s.History, verdicts: s.Verdicts, leaving: len(pods.leaving) > 0, notes: notes}

	// Identity: who has which instance ID.
	ledger := readLedger(s, pods, claims, notes)
	f := &findings{pods: pods, ledger: ledger, claims: claims, api: api, notes: notes, do: &plan.PodActions}
	repairing := repairing{Identity: &s.Identity, Scale: &s.Scale, History: &s.History, findings: f}
	plan.Repairs = repairing.repair()
	ledger.avoidHalted()

	// Membership and scale: who leaves, who comes, who is too many. A plan that moves members adds and removes no Pod:
	// the next one counts what came of it. One with a problem does neither.
	scaling := scaling{Mode: &s.Mode, Scale: &s.Scale, Strategy: &s.Strategy, History: &s.History, findings: f}
	isSound := plan.Problem == ""
	if isSound {
		membership := membership{Mode: &s.Mode, Identity: &s.Identity, Scale: &s.Scale, History: &s.History, findings: f}
		plan.Exclusions, plan.Inclusions = membership.plan()
		scaling.chooseCondemned()
	}
	f.isMoving = len(plan.Exclusions)+len(plan.Inclusions) > 0
	mayScale := isSound && !f.isMoving
	if mayScale && !s.Paused {
		scaling.fillSlots()
	}

	// Rollout: which Pods are to be at the updated revision; replacement: which of them, and of others, by a new Pod.
	scope := scope{Mode: &s.Mode, Scale: &s.Scale, Strategy: &s.Strategy, History: &s.History, findings: f}
	scope.choose()
	scope.aim()
	replacing := replacing{Mode: &s.Mode, Identity: &s.Identity, Strategy: &s.Strategy, History: &s.History, findings: f}
	replacing.replace(isSound)
	if mayScale {
		scaling.scaleIn()
	}
	updating := updating{Mode: &s.Mode, Scale: &s.Scale, Strategy: &s.Strategy, History: &s.History, findings: f}
	updating.update()
	plan.Rollout = updating.rollout

	// What is left: vacant slots are filled, volumes kept, and users' names and labels follow.
	if mayScale {
		filling := filling{Mode: &s.Mode, Identity: &s.Identity, Scale: &s.Scale, History: &s.History, findings: f}
		filling.removeTerminal()
		plan.Creations = filling.create()
		filling.handOver()
	}
	keeping := keeping{Mode: &s.Mode, History: &s.History, findings: f}
	plan.ClaimActions = keeping.keepClaims()
	plan.Names = takenNames(s, pods)
	plan.Labels = relabels(pods, &plan.PodActions)

	ledger.store(&plan, s.isMixed(), f.isMoving)
	plan.Goal = f.goal(s.Replicas, replacing.any, &updating)
	plan.Trials = api.asked
	sortTrials(plan.Trials)
	notes.tell(&plan)
	return plan
}

// goal is where the set stands, once everything is decided.
func (f *findings) goal(replicas int, isReplacing bool, updates *updating) Goal {
	missing := f.pods.replicas() != replicas
	surplus := slices.ContainsFunc(f.pods.items, func(it *item) bool { return it.condemned })
	// lacking is what the Pod lacks that is furthest from being available, awaited the first of what such Pods wait for.
	lacking, awaited := LacksNothing, ""
	for _, it := range f.pods.live {
		if it.Available {
			continue
		}
		f.notes.look(it.AvailableIn)
		lack := unavailableReason(it.Pod)
		if lack > lacking {
			lacking, awaited = lack, ""
		}
		if it.Fails != "" {
			f.notes.block(it, BlockContainersFail, it.Fails)
		}
		if lack == lacking && it.Awaited != "" && (awaited == "" || it.Awaited < awaited) {
			awaited = it.Awaited
		}
	}
	scaled := !missing && !surplus && !f.isMoving
	atRest := scaled && lacking == LacksNothing && !isReplacing && !f.notes.refused && !updates.underWay
	return Goal{
		ScaleReached:  scaled,
		UpdateReached: updates.waiting == 0,
		Replacing:     isReplacing,
		Lacking:       lacking,
		Awaited:       awaited,
		Held:          f.notes.refused,
		Refusal:       f.notes.refuses,
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
