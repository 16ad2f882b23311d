package setplan

import "slices"

// maxBlockers bounds the reasons in status.
const maxBlockers = 16

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
	api := &asking{History: &s.History, verdicts: s.Verdicts, leaving: len(pods.leaving) > 0, notes: notes}

	// Identity: who has which instance ID.
	plan := Plan{Problem: problemOf(&s.Identity, s.Replicas)}
	ledger := readLedger(s, pods, claims, notes)
	repairing := repairing{
		Identity: &s.Identity, Scale: &s.Scale, History: &s.History, pods: pods, ledger: ledger, notes: notes,
	}
	plan.Repairs = repairing.repair()
	ledger.avoidHalted()

	// Membership and scale: who leaves, who comes, who is too many. A plan that moves members adds and removes no Pod:
	// the next one counts what came of it. One with a problem does neither.
	scaling := scaling{
		Mode: &s.Mode, Scale: &s.Scale, Strategy: &s.Strategy, History: &s.History,
		pods: pods, ledger: ledger, claims: claims, api: api, notes: notes,
	}
	isSound := plan.Problem == ""
	if isSound {
		membership := membership{
			Mode: &s.Mode, Identity: &s.Identity, Scale: &s.Scale, History: &s.History,
			pods: pods, ledger: ledger, claims: claims, notes: notes,
		}
		plan.Exclusions, plan.Inclusions = membership.plan()
		scaling.chooseCondemned()
	}
	isMoving := len(plan.Exclusions)+len(plan.Inclusions) > 0
	mayScale := isSound && !isMoving
	if mayScale && !s.Paused {
		scaling.fillSlots()
	}

	// Rollout: which Pods are to be at the updated revision; replacement: which of them, and of others, by a new Pod.
	scope := scope{
		Mode: &s.Mode, Strategy: &s.Strategy, History: &s.History, replicas: s.Replicas, pods: pods, ledger: ledger, api: api,
	}
	scope.choose()
	aiming := aiming{Strategy: &s.Strategy, History: &s.History, api: api, notes: notes}
	aiming.aim(pods.items)
	replacing := replacing{
		Mode: &s.Mode, Identity: &s.Identity, Strategy: &s.Strategy, History: &s.History,
		pods: pods, ledger: ledger, api: api, notes: notes, isMoving: isMoving,
	}
	plan.add(replacing.replace(isSound))
	if mayScale {
		plan.add(scaling.scaleIn())
	}
	updating := updating{
		Mode: &s.Mode, Strategy: &s.Strategy, History: &s.History, replicas: s.Replicas,
		pods: pods, ledger: ledger, claims: claims, api: api, notes: notes, isMoving: isMoving,
	}
	plan.add(updating.update())
	plan.Rollout = updating.rollout

	// What is left: vacant slots are filled, volumes kept, and users' names and labels follow.
	if mayScale {
		filling := filling{
			Mode: &s.Mode, Identity: &s.Identity, Scale: &s.Scale, History: &s.History,
			pods: pods, ledger: ledger, claims: claims, api: api, notes: notes,
		}
		plan.add(filling.removeTerminal())
		plan.Creations = filling.create()
	}
	keeping := keeping{Mode: &s.Mode, History: &s.History, pods: pods, ledger: ledger, claims: claims, notes: notes}
	plan.ClaimActions = keeping.keepClaims()
	if mayScale && !s.Paused {
		plan.add(handOver(&s.Mode, s.Sequential, pods, notes))
	}
	plan.Names = takenNames(s, pods)
	plan.Labels = relabels(pods, &plan.PodActions)

	ledger.store(&plan, s.isMixed(), isMoving)
	plan.Goal = goalOf(s.Replicas, pods, notes, isMoving, replacing.any, &updating)
	plan.Trials = api.asked
	sortTrials(plan.Trials)
	notes.tell(&plan)
	return plan
}

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
		if it.Fails != "" {
			notes.block(it, BlockContainersFail, it.Fails)
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
