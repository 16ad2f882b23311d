package observer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The field managers of the suite, which are the names of its components.
const (
	collasetController   = "collaset-controller"
	lifecycleController  = "lifecycle-controller"
	ruleController       = "podtransitionrule-controller"
	consistController    = "resourceconsist-controller"
	jobController        = "operationjob-controller"
	decorationController = "poddecoration-controller"
	webhookServer        = "webhook-server"
	anyField             = ""
	podLabels            = "f:metadata.f:labels.f:"
	podAnnotations       = "f:metadata.f:annotations.f:"
	podFinalizers        = "f:metadata.f:finalizers"
	protocolDomain       = "podopslifecycle.kusionstack.io"
	availableConditions  = "pod.kusionstack.io/available-conditions"
	toReplaceAskers      = "collaset.kusionstack.io/to-replace-askers"
	toDeleteAskers       = "collaset.kusionstack.io/to-delete-askers"
	jobTasks             = "operationjob.kusionstack.io/tasks"
	statusConditions     = "f:status.f:conditions"
)

// fields says which fields of an object a component may write: those that match a pattern and none of the others. A
// pattern is what a path contains; a path is that of managedFields, its steps joined by dots. Images are those of
// containers of a Pod.
type fields struct {
	may, mayNot []string
	images      bool
}

// writable is, by kind and component, what it may write. A component that is not named writes nothing of the kind.
var writable = map[string]map[string]fields{
	"Pod": {
		collasetController: {may: []string{anyField},
			mayNot: []string{"f:status", podAnnotations + strings.TrimSuffix(ruleDetail, "/")}},
		lifecycleController: {may: []string{podLabels, podAnnotations, podFinalizers, statusConditions}},
		ruleController:      {may: []string{podAnnotations + strings.TrimSuffix(ruleDetail, "/")}},
		consistController:   {may: []string{podLabels, podAnnotations + availableConditions, podFinalizers}},
		jobController: {may: []string{podLabels, podAnnotations + toReplaceAskers, podAnnotations + toDeleteAskers,
			podAnnotations + jobTasks, podFinalizers}, images: true},
		decorationController: {may: []string{podLabels, podAnnotations, "f:spec.f:"},
			mayNot: []string{podAnnotations + strings.TrimSuffix(ruleDetail, "/")}},
		webhookServer: {may: []string{podLabels, podAnnotations}},
	},
	"CollaSet": {
		collasetController: {may: []string{podFinalizers, "f:status"}},
	},
	"PodTransitionRule": {
		ruleController: {may: []string{podFinalizers, "f:status"}},
	},
	"PodDecoration": {
		decorationController: {may: []string{podFinalizers, "f:status"}},
	},
	"ResourceContext": {
		collasetController: {may: []string{anyField}},
	},
}

// foreignLabels are who writes of a Pod's labels the protocol's and marks alone.
var foreignLabels = map[string]bool{lifecycleController: true, consistController: true, jobController: true}

// components are the suite's field managers.
var components = map[string]bool{collasetController: true, lifecycleController: true, ruleController: true,
	consistController: true, jobController: true, decorationController: true, webhookServer: true}

// checkWriters judges that no component has written a field that is not its own. What it wrote is what it holds by
// managedFields; only what has changed since is looked at.
func (s *space) checkWriters(before, now metav1.Object, e Event) {
	old := before.GetManagedFields()
	for _, entry := range now.GetManagedFields() {
		if !components[entry.Manager] || entry.FieldsV1 == nil || unchanged(old, entry) {
			continue
		}
		s.checks[Writers]++
		if path := trespass(kindOf(now), entry); path != "" {
			s.report(Writers, e, fmt.Sprintf("%s has written %s, which is not its own", entry.Manager, path))
		}
	}
}

func unchanged(old []metav1.ManagedFieldsEntry, entry metav1.ManagedFieldsEntry) bool {
	for i := range old {
		o := &old[i]
		if o.Manager == entry.Manager && o.Subresource == entry.Subresource && o.Operation == entry.Operation &&
			o.FieldsV1 != nil {
			return o.FieldsV1.Equal(*entry.FieldsV1)
		}
	}
	return false
}

// trespass is a field that a component holds and may not write; "" if there is none.
func trespass(kind string, entry metav1.ManagedFieldsEntry) string {
	var held map[string]any
	if err := json.Unmarshal(entry.FieldsV1.GetRawBytes(), &held); err != nil {
		return "something unreadable"
	}
	allowed := writable[kind][entry.Manager]
	wrong := ""
	leaves(held, "", func(path string) {
		if wrong == "" && !allowed.allow(path) || kind == "Pod" && foreignLabels[entry.Manager] && strange(path) {
			wrong = path
		}
	})
	return wrong
}

// strange reports whether a path is that of a Pod's label that does not belong to the protocol.
func strange(path string) bool {
	label, ok := strings.CutPrefix(path, podLabels)
	return ok && !strings.Contains(label, protocolDomain) && !strings.HasPrefix(label, "collaset.kusionstack.io/")
}

// isImage reports whether a path is that of the image of a container.
func isImage(path string) bool {
	return strings.HasSuffix(path, ".f:image") &&
		(strings.HasPrefix(path, "f:spec.f:containers.") || strings.HasPrefix(path, "f:spec.f:initContainers."))
}

func (f fields) allow(path string) bool {
	if f.images && isImage(path) {
		return true
	}
	for _, p := range f.mayNot {
		if strings.HasPrefix(path, p) {
			return false
		}
	}
	for _, p := range f.may {
		if strings.HasPrefix(path, p) {
			return true
		}
	}
	return false
}

// leaves visits the fields that are held, but not the map of labels or annotations itself. The writer of its first entry
// holds that, also when another has written the entry since.
func leaves(held map[string]any, path string, visit func(string)) {
	for step, below := range held {
		at := step
		if path != "" {
			at = path + "." + step
		}
		if m, ok := below.(map[string]any); ok && len(m) > 0 {
			leaves(m, at, visit)
			continue
		}
		if step != "." && at != strings.TrimSuffix(podLabels, ".f:") && at != strings.TrimSuffix(podAnnotations, ".f:") {
			visit(at)
		}
	}
}

// holds reports whether an entry of managedFields names a container.
func holds(entry metav1.ManagedFieldsEntry, container string) bool {
	return entry.FieldsV1 != nil && bytes.Contains(entry.FieldsV1.GetRawBytes(), []byte(`\"name\":\"`+container+`\"`))
}
