package podops

import (
	"slices"
	"strings"
)

// Phase is where an operation is. It is always derived from the Pod's labels, and never stored elsewhere.
type Phase string

const (
	// PhaseNone: the ID is not on the Pod (an operation type alone does not count).
	PhaseNone Phase = ""
	// PhaseRequested: operating, but not submitted to the rules yet, or submitted for an earlier request.
	PhaseRequested Phase = "Requested"
	// PhasePreCheck: operating and pre-check, no permission for this type yet.
	PhasePreCheck Phase = "PreCheck"
	// PhasePreChecked: operating with permission, but neither preparing nor
	// operate. Only programs that write the steps one by one leave a Pod here.
	PhasePreChecked Phase = "PreChecked"
	// PhasePreparing: operating with permission, preparing; the Pod goes offline.
	PhasePreparing Phase = "Preparing"
	// PhaseOperate: operating with permission, operate; the operator acts.
	PhaseOperate Phase = "Operate"
	// PhaseFinished: operate without operating; the operator has finished and the ID has not been advanced yet.
	PhaseFinished Phase = "Finished"
	// PhasePostCheck: operated and post-check; the Pod stays offline.
	PhasePostCheck Phase = "PostCheck"
	// PhasePostChecked: operated and post-checked, not yet completing.
	PhasePostChecked Phase = "PostChecked"
	// PhaseCompleting: operated and completing; the Pod returns to service.
	PhaseCompleting Phase = "Completing"
	// PhaseUndone: undo-operation-type; every key of the ID must be removed.
	PhaseUndone Phase = "Undone"
	// PhaseAbandoned: keys of an operation that was not performed and that no operator requests any more; every key of
	// the ID must be removed.
	PhaseAbandoned Phase = "Abandoned"
)

// Operation is one ID as found on a Pod.
type Operation struct {
	// ID is the operator's slot.
	ID string
	// Type is the requested type or, once finished, the type that was performed. It is "" if the operator has not
	// written it.
	Type string
	// Phase is where it is.
	Phase Phase
	// Request identifies the request to rules: the value of the operating
	// label, or of the operated label once finished.
	Request string
	// Held is whether an earlier operation under this ID was performed and not post-checked: the Pod stays offline
	// although the ID is back in PreCheck.
	Held bool
}

// Offline reports whether this operation needs the Pod out of service.
func (o Operation) Offline() bool {
	switch o.Phase {
	case PhasePreChecked, PhasePreparing, PhaseOperate, PhaseFinished, PhasePostCheck:
		return true
	case PhaseRequested, PhasePreCheck:
		return o.Held
	case PhaseNone, PhasePostChecked, PhaseCompleting, PhaseUndone, PhaseAbandoned:
		return false
	}
	return false
}

// UnderWay reports whether the operation has begun and is neither finished nor cancelled.
func (o Operation) UnderWay() bool {
	switch o.Phase {
	case PhaseRequested, PhasePreCheck, PhasePreChecked, PhasePreparing, PhaseOperate:
		return true
	case PhaseNone, PhaseFinished, PhasePostCheck, PhasePostChecked, PhaseCompleting, PhaseUndone, PhaseAbandoned:
	}
	return false
}

// PhaseOf returns the phase of one ID.
func PhaseOf(v View, id string) Phase {
	return operationOf(v.Labels, id).Phase
}

// OperationOf returns one ID as found on the Pod; its Phase is PhaseNone if it is not there.
func OperationOf(v View, id string) Operation {
	return operationOf(v.Labels, id)
}

// Operations returns all operations on the Pod, by ID.
func Operations(v View) []Operation {
	return operations(v.Labels)
}

// Offline reports whether any operation needs the Pod out of service.
func Offline(v View) bool {
	_, needed := OfflineFor(v)
	return needed
}

// OfflineFor is the first operation, by ID, that needs the Pod out of service. It is false if none does.
func OfflineFor(v View) (Operation, bool) {
	ops := Operations(v)
	at := slices.IndexFunc(ops, Operation.Offline)
	if at < 0 {
		return Operation{}, false
	}
	return ops[at], true
}

func operations(labels map[string]string) []Operation {
	var few [4]marks // rarely more
	all := few[:0]
	for key, value := range labels {
		m, id, ok := splitKey(key)
		if !ok {
			continue
		}
		at := slices.IndexFunc(all, func(has marks) bool { return has.id == id })
		if at < 0 {
			at, all = len(all), append(all, marks{id: id})
		}
		all[at].set(m, value)
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b marks) int { return strings.Compare(a.id, b.id) })
	ops := make([]Operation, 0, len(all))
	for i := range all {
		if o := all[i].operation(labels); o.Phase != PhaseNone {
			ops = append(ops, o)
		}
	}
	return ops
}

// marks are the labels of one ID.
type marks struct {
	id      string
	present [len(prefixes)]bool
	values  [len(prefixes)]string
}

func (k *marks) set(m mark, value string) { k.present[m], k.values[m] = true, value }

func (k *marks) has(m mark) bool { return k.present[m] }

func operationOf(labels map[string]string, id string) Operation {
	k := marks{id: id}
	for key, value := range labels {
		if m, of, ok := splitKey(key); ok && of == id {
			k.set(m, value)
		}
	}
	return k.operation(labels)
}

// operation is the ID as the marks tell it. The labels are those of the Pod: permissions do not belong to an ID.
func (k *marks) operation(labels map[string]string) Operation {
	o := Operation{ID: k.id, Type: k.values[markOperationType]}
	if k.has(markUndoOperationType) {
		o.Phase = PhaseUndone
		return o
	}
	if k.has(markOperating) {
		o.Request = k.values[markOperating]
		o.Phase, o.Held = k.requestedPhase(labels)
		return o
	}
	switch {
	case k.has(markOperated):
		o.Phase = k.finishedPhase()
	case k.has(markOperate):
		o.Phase = PhaseFinished
	case k.has(markPreCheck), k.has(markPreChecked), k.has(markPreparing), k.has(markPostCheck),
		k.has(markPostChecked), k.has(markCompleting), k.has(markDoneOperationType), k.has(markWaived):
		o.Phase = PhaseAbandoned
	default:
		o.Phase = PhaseNone
	}
	if k.has(markOperated) {
		o.Request = k.values[markOperated]
		o.Type = k.values[markDoneOperationType]
	}
	return o
}

// requestedPhase is the phase of an ID that is operating.
func (k *marks) requestedPhase(labels map[string]string) (phase Phase, held bool) {
	if k.has(markOperated) {
		// Asked again. Traffic that was already let back (post-checked) is not
		// taken away by asking; traffic that was not stays away.
		held = !k.has(markPostChecked) && !k.has(markCompleting)
		if held && k.has(markPreCheck) && !k.has(markPostCheck) && !k.has(markPreChecked) && !k.has(markPreparing) &&
			!k.has(markOperate) {
			return PhasePreCheck, true
		}
		return PhaseRequested, held
	}
	if !k.permits(labels) {
		fresh := !k.has(markPreChecked) && !k.has(markPreparing) && !k.has(markOperate)
		if k.has(markPreCheck) && fresh {
			return PhasePreCheck, false
		}
		return PhaseRequested, k.has(markOperate)
	}
	switch {
	case k.has(markOperate):
		return PhaseOperate, false
	case k.has(markPreparing):
		return PhasePreparing, false
	default:
		return PhasePreChecked, false
	}
}

// permits reports whether the labels have a permission for the request: of its type, and not older than it. The suite
// stamps a permission with the request that it was given for; upstream's stamps are later than the request.
func (k *marks) permits(labels map[string]string) bool {
	opType := k.values[markOperationType]
	if !k.has(markPreChecked) || opType == "" {
		return false
	}
	if _, permitted := labels[PermissionPrefix+"/"+opType]; !permitted {
		return false
	}
	given, known := TimeOf(k.values[markPreChecked])
	asked, stamped := TimeOf(k.values[markOperating])
	return !known || !stamped || !given.Before(asked)
}

// finishedPhase is the phase of an ID that is operated and no longer operating.
func (k *marks) finishedPhase() Phase {
	switch {
	case k.has(markCompleting):
		return PhaseCompleting
	case k.has(markPostChecked):
		return PhasePostChecked
	case k.has(markPostCheck) && !k.has(markOperate) && !k.has(markPreCheck):
		return PhasePostCheck
	default:
		return PhaseFinished
	}
}
