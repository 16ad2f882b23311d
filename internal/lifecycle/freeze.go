package lifecycle

import (
	"fmt"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/freeze"
)

// frozen says why nothing in the namespace may be taken out of service; "" if it may.
func frozen(suite, namespace string, s freeze.State) string {
	switch {
	case !s.Known: // its event wakes the Pods that wait
		return fmt.Sprintf("namespace %s is not known yet", namespace)
	case s.Cluster:
		return fmt.Sprintf("the cluster is frozen by annotation %s of namespace %s: %q", podops.FreezeClusterAnnotation,
			suite, s.Why)
	case s.Frozen:
		return fmt.Sprintf("namespace %s is frozen by annotation %s: %q", namespace, podops.FreezeAnnotation, s.Why)
	}
	return ""
}
