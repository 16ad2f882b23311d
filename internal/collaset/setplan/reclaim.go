package setplan

import "kusionstack.io/kuperator/api/podops"

// reclaim takes a deleted CollaSet's Pods out, and then itself.
func reclaim(s *Snapshot, pods *members, claims *claimIndex, notes *notes) Plan {
	// The Pods that it owns and does not find are to be found, so that they go as the others do.
	for i := range s.Strays {
		if st := &s.Strays[i]; st.Unmanaged && !s.Orphaning {
			pods.manage(&st.Pod)
		}
	}
	plan := Plan{Repairs: pods.repairs}
	plan.ClaimReleases = claims.releases()
	for _, it := range pods.items {
		switch {
		case s.Orphaning:
			notes.block(it, "WaitingForGarbageCollector",
				"is to be left behind, and the garbage collector has not taken its owner reference off yet")
		case it.View.Terminating:
			notes.block(it, "Terminating", "is being deleted")
		case !s.Protocol:
			plan.Deletions = append(plan.Deletions, Deletion{it.Pod, DeleteReclaim})
		case !it.ToDelete:
			plan.Marks = append(plan.Marks, it.Pod)
		default:
			if reason, message := unheld(it, podops.DeletionID); reason != "" {
				notes.block(it, reason, message)
				continue
			}
			notes.leaves(it, "is handed to lifecycle-controller, which deletes it as soon as it may")
		}
	}
	plan.Release = len(pods.items)+len(plan.Repairs) == 0
	return plan
}
