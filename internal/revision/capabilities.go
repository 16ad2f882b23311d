package revision

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Capabilities is what an API server lets anyone change on a running Pod beyond what every server since v1.30 does:
// images, labels, annotations, added tolerations and a lower activeDeadlineSeconds; and what of that is not wanted. The
// zero value is nothing more.
type Capabilities struct {
	// Resize: cpu and memory of containers and sidecars, through pods/resize (by default since v1.33).
	Resize bool
	// ResizeInit: also those of ordinary init containers (by default since v1.36). They matter when the containers run
	// again, so nothing waits for them.
	ResizeInit bool
	// ResizePod: also those of the Pod as a whole, and of the containers of such a Pod (by default since v1.36).
	ResizePod bool
	// ImagesOnly: nothing is to be taken over but images of containers (not of init containers), labels and annotations,
	// as in Kuperator v0.7; whatever else the server can, another Pod comes for it.
	ImagesOnly bool
	// Restart are the annotations of the template that ask for a restart.
	Restart RestartAnnotations
}

const (
	// RestartedAtAnnotation in a template asks for a restart of its Pods, as kubectl rollout restart does. Another value
	// makes new Pods: a running Pod would take the annotation over and go on as it is.
	RestartedAtAnnotation = "kubectl.kubernetes.io/restartedAt"
	// DefaultRestartAnnotations are written by charts (checksum, rollme), by Reloader, Wave, Vault Secrets Operator, Keel
	// and Rancher, each to have the Pods of a template restarted.
	DefaultRestartAnnotations RestartAnnotations = "checksum/*,rollme,reloader.stakater.com/last-reloaded-from," +
		"wave.pusher.com/config-hash,vso.secrets.hashicorp.com/restartedAt,keel.sh/update-time,cattle.io/timestamp"
	// RestartAnnotationsFlag is the flag by which others are chosen, of all programs that explain changes.
	RestartAnnotationsFlag = "restart-annotations"
	// RestartAnnotationsUsage is the help of that flag.
	RestartAnnotationsUsage = "Comma-separated annotations of a CollaSet's template that request a restart: " +
		"a new value re-creates the Pods. " +
		"A prefix that ends in /* matches all annotations that begin with it. " + RestartedAtAnnotation +
		" is always included. " +
		"Must be the same for collaset-controller and webhook-server."
)

// RestartAnnotations are annotations of a template, separated by commas, of which a new value makes new Pods, beside
// RestartedAtAnnotation. One that ends in /* stands for all that begin alike. It is the value of a flag.
type RestartAnnotations string

// Set takes a list over, if all in it can be annotations.
func (r *RestartAnnotations) Set(list string) error {
	var keys []string
	for _, key := range strings.Split(list, ",") {
		if key = strings.TrimSpace(key); key == "" {
			continue
		}
		example := key
		if prefix, many := strings.CutSuffix(key, "/*"); many {
			example = prefix + "/x"
		}
		if problems := validation.IsQualifiedName(strings.ToLower(example)); len(problems) > 0 {
			return fmt.Errorf("%q is neither an annotation nor a prefix ending in /*: %s", key, problems[0])
		}
		keys = append(keys, key)
	}
	*r = RestartAnnotations(strings.Join(keys, ","))
	return nil
}

// String is the list.
func (r *RestartAnnotations) String() string { return string(*r) }

// Type names the kind of value in the help of a program.
func (*RestartAnnotations) Type() string { return "strings" }

// has reports whether a new value of an annotation asks for a restart.
func (r RestartAnnotations) has(annotation string) bool {
	if annotation == RestartedAtAnnotation {
		return true
	}
	for _, key := range strings.Split(string(r), ",") {
		prefix, many := strings.CutSuffix(key, "*")
		if annotation == key || (many && strings.HasPrefix(annotation, prefix)) {
			return true
		}
	}
	return false
}
