package observer

import (
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
)

const (
	preCheckPrefix    = "pre-check" + protocolSuffix
	preCheckedPrefix  = "pre-checked" + protocolSuffix
	permissionPrefix  = "operation-permission" + protocolSuffix
	operatedPrefix    = "operated" + protocolSuffix
	doneTypePrefix    = "done-operation-type" + protocolSuffix
	postCheckPrefix   = "post-check" + protocolSuffix
	postCheckedPrefix = "post-checked" + protocolSuffix
	completingPrefix  = "completing" + protocolSuffix
	waivedPrefix      = "waived" + protocolSuffix
	undoPrefix        = "undo-operation-type" + protocolSuffix

	serviceAvailable  = "podopslifecycle.kusionstack.io/service-available"
	creatingMark      = "podopslifecycle.kusionstack.io/creating"
	recreatedMark     = "podopslifecycle.kusionstack.io/completing"
	preparingToDelete = "podopslifecycle.kusionstack.io/preparing-to-delete"
	stayOffline       = "podopslifecycle.kusionstack.io/stay-offline"
	ruleDetail        = "detail.podtransitionrule.kusionstack.io/"
	overdue           = "podopslifecycle.kusionstack.io/OperationOverdue"
	protection        = "prot.podopslifecycle.kusionstack.io"
)

// checkKeys judges the keys of the protocol that a Pod has got with an event: each comes with its partners, in one
// write.
func (s *space) checkKeys(before, now *pod, e Event) {
	labels, old := now.obj.Labels, before.obj.Labels
	if s.options.Direct || now.obj.DeletionTimestamp != nil || maps.Equal(labels, old) {
		return
	}
	for k := range labels {
		if _, had := old[k]; had {
			continue
		}
		if k == serviceAvailable {
			s.checks[Keys]++
			if why := mayServe(now.obj); why != "" {
				s.report(Keys, e, "counts as in service, but "+why)
			}
			continue
		}
		prefix, id, ok := strings.Cut(k, protocolSuffix)
		if !ok {
			continue
		}
		s.checks[Keys]++
		if why := partnerless(labels, prefix+protocolSuffix, id); why != "" {
			s.report(Keys, e, fmt.Sprintf("has got %s, but %s", k, why))
		}
		switch prefix + protocolSuffix {
		case preparingPrefix:
			s.checkGranted(before, now, id, e)
		case operatePrefix:
			_, waived := labels[waivedPrefix+id]
			s.checkPermission(now.obj, k, waived, e)
			s.checkBackend(now.obj, e)
			if _, prepared := old[preparingPrefix+id]; !prepared {
				s.checkGranted(before, now, id, e)
			}
		}
	}
}

// checkPermission judges that a Pod is out of service, for every employer, when an operator is allowed to act.
func (s *space) checkPermission(obj *corev1.Pod, key string, waived bool, e Event) {
	s.checks[Traffic]++
	if hasGate(obj) && !isTerminal(obj) && (isReady(obj) || conditionStatus(obj, serviceReady) != corev1.ConditionFalse) {
		s.report(Traffic, e, fmt.Sprintf("has got %s with service-ready=%s and Ready=%s", key,
			conditionStatus(obj, serviceReady), conditionStatus(obj, corev1.PodReady)))
	}
	for _, f := range obj.Finalizers {
		if strings.HasPrefix(f, protection) && !waived {
			s.report(Traffic, e, fmt.Sprintf("has got %s while finalizer %s still held it", key, f))
		}
	}
}

// partnerless says which partner a key of an operation lacks; "" if none.
func partnerless(labels map[string]string, prefix, id string) string {
	lacks := func(keys ...string) string {
		for _, k := range keys {
			if _, ok := labels[k]; !ok {
				return "not " + k
			}
		}
		return ""
	}
	switch prefix {
	case preCheckPrefix:
		return lacks(operatingPrefix + id)
	case preCheckedPrefix:
		return lacks(operatingPrefix+id, operationTypePrefix+id)
	case preparingPrefix, operatePrefix:
		return lacks(operatingPrefix+id, operationTypePrefix+id, preCheckedPrefix+id,
			permissionPrefix+labels[operationTypePrefix+id])
	case permissionPrefix:
		for k := range labels {
			if other, ok := strings.CutPrefix(k, preCheckedPrefix); ok && labels[operationTypePrefix+other] == id {
				return ""
			}
		}
		return "no operation of this type was let pass"
	case operatedPrefix:
		return lacks(doneTypePrefix + id)
	case doneTypePrefix, postCheckPrefix:
		return lacks(operatedPrefix + id)
	case postCheckedPrefix, completingPrefix:
		return lacks(operatedPrefix+id, doneTypePrefix+id)
	case waivedPrefix:
		return lacks(operatePrefix + id)
	}
	return ""
}

// mayServe says why a Pod cannot be in service; "" if it can.
func mayServe(obj *corev1.Pod) string {
	switch {
	case !isReady(obj):
		return "Ready is " + string(conditionStatus(obj, corev1.PodReady))
	case hasGate(obj) && conditionStatus(obj, serviceReady) != corev1.ConditionTrue:
		return "service-ready is " + string(conditionStatus(obj, serviceReady))
	}
	for k := range obj.Labels {
		for _, prefix := range []string{preparingPrefix, operatePrefix, postCheckPrefix} {
			if strings.HasPrefix(k, prefix) {
				return "it has " + k
			}
		}
	}
	return ""
}

// asks reports whether an operation has been asked for.
func asks(obj *corev1.Pod) bool { return hasKey(obj, operatingPrefix) }

// explained reports whether a reason is stated for which a Pod waits in a stage.
func (s *space) explained(obj *corev1.Pod) bool {
	if conditionStatus(obj, overdue) == corev1.ConditionTrue {
		return true
	}
	for k := range obj.Annotations {
		if strings.HasPrefix(k, ruleDetail) {
			return true
		}
	}
	for _, r := range s.rules {
		if !r.selects(obj) {
			continue
		}
		named := 0
		for i := range r.obj.Status.Details {
			d := &r.obj.Status.Details[i]
			if !d.Passed && d.Name == obj.Name {
				return true
			}
			if !d.Passed {
				named++
			}
		}
		if int(r.obj.Status.Blocked) > named {
			return true // more than it names
		}
	}
	return false
}

// judgeKeys judges the keys of a Pod at rest: finished and cancelled operations have left none.
func (s *space) judgeKeys(r resting, obj *corev1.Pod) {
	for _, k := range sortedKeys(obj.Labels) {
		prefix, id, ok := strings.Cut(k, protocolSuffix)
		if !ok {
			continue
		}
		prefix += protocolSuffix
		why := partnerless(obj.Labels, prefix, id)
		if prefix == permissionPrefix {
			r.judge(Keys, obj, why == "", "still has %s, but %s", k, why)
			continue
		}
		_, operating := obj.Labels[operatingPrefix+id]
		_, operated := obj.Labels[operatedPrefix+id]
		if why == "" && !operating && !operated {
			why = "operation " + id + " is over"
		}
		if why == "" && prefix == undoPrefix {
			why = "it was to be undone"
		}
		if why == "" && id == operatorID && (prefix == operatePrefix || prefix == preparingPrefix ||
			prefix == completingPrefix) && conditionStatus(obj, overdue) != corev1.ConditionTrue {
			why = "nothing is to be done any more"
		}
		r.judge(Keys, obj, why == "", "still has %s, but %s", k, why)
	}
	if _, serves := obj.Labels[serviceAvailable]; serves {
		for _, k := range []string{creatingMark, recreatedMark} {
			_, marked := obj.Labels[k]
			r.judge(Keys, obj, !marked, "is in service and still has %s", k)
		}
		why := mayServe(obj)
		r.judge(Keys, obj, why == "", "counts as in service, but %s", why)
	}
	_, leaves := obj.Labels[preparingToDelete]
	r.judge(Keys, obj, !leaves || asks(obj), "still has %s without an operation", preparingToDelete)
	s.judgePair(r, obj)
}

// judgePair judges the labels of a replacement at rest.
func (s *space) judgePair(r resting, obj *corev1.Pod) {
	if origin, ok := obj.Labels[appsv1alpha1.ReplacePairOriginNameLabel]; ok {
		p := s.pods[origin]
		r.judge(Keys, obj, p != nil && p.obj.Labels[appsv1alpha1.ReplacePairNewIDLabel] == obj.Labels[instanceIDLabel],
			"still says that it replaces Pod %s", origin)
	}
	id, paired := obj.Labels[appsv1alpha1.ReplacePairNewIDLabel]
	_, asked := obj.Labels[appsv1alpha1.ToReplaceLabel]
	_, byUpdate := obj.Labels[appsv1alpha1.ReplacedByReplaceUpdateLabel]
	if paired || byUpdate {
		r.judge(Keys, obj, asked, "still says that it is replaced by instance ID %q, which nobody asks for", id)
	}
}
