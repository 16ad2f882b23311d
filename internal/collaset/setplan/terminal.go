package setplan

// leave notes a Pod that is on its way out or has run to its end. Of several with one ID one that is being deleted
// counts: it is the one to wait for.
func (d *decision) leave(it *item) {
	if before := d.leaving[it.ID]; before == nil || it.View.Terminating {
		d.leaving[it.ID] = it
	}
}

// removeTerminal deletes Pods that have run to their end. One whose successor is still to come is kept until that
// may: its logs are all that tells why.
func (d *decision) removeTerminal() {
	if d.moving || d.holds(func(p Problem) bool { return p.Scale }) {
		return
	}
	for _, it := range d.items {
		switch {
		case !it.View.Terminal || it.View.Terminating || it.excluding || d.putOff(it):
		case it.Again > 0 && d.succeeded(it):
			d.block(it, "BackOff", it.Ended+"; Pods of its instance ID end again and again, so the next attempt waits, 5 minutes at most: see its logs and what the template runs")
			d.look(it.Again)
		default:
			d.plan.Deletions = append(d.plan.Deletions, Deletion{it.Pod, DeleteTerminal})
		}
	}
}

// succeeded reports whether the Pod is the one that its vacant entry waits for, to be filled by another one like it.
func (d *decision) succeeded(it *item) bool {
	e := d.entries[it.ID]
	return e != nil && !e.dropped && !e.vacated && d.holder[it.ID] == nil && d.leaving[it.ID] == it && e.revision() == it.Revision
}

// waitsForPredecessor reports whether a vacant slot cannot be filled yet: its last Pod ended and the next attempt
// waits, or the name or the volumes are still in use. A Pod that cannot go is never deleted by force: its containers
// may still write.
func (d *decision) waitsForPredecessor(e *slot) bool {
	gone := d.leaving[e.id]
	switch {
	case gone == nil:
		return false
	case gone.View.Terminal && !gone.View.Terminating && gone.Again > 0 && d.succeeded(gone):
		return true
	case !d.s.Sequential && !d.waitsForVolumes(e, gone):
		return false
	case !gone.View.Terminating:
	case d.s.Sequential:
		d.block(gone, "NameInUse", "is being deleted and holds the name of its successor; if its node is gone for good, taint that node out of service")
	default:
		d.block(gone, BlockVolumesInUse, "is being deleted and holds the volumes of its successor; if its node is gone for good, taint that node out of service")
	}
	return true
}
