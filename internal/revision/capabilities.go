package revision

// Capabilities is what an API server lets anyone change on a running Pod beyond what every server since v1.30 does:
// images, labels, annotations, added tolerations and a lower activeDeadlineSeconds. The zero value is nothing more.
type Capabilities struct {
	// Resize: cpu and memory of containers and sidecars, through pods/resize (by default since v1.33).
	Resize bool
	// ResizeInit: also those of ordinary init containers (by default since v1.36). They matter when the containers run
	// again, so nothing waits for them.
	ResizeInit bool
	// ResizePod: also those of the Pod as a whole, and of the containers of such a Pod (by default since v1.36).
	ResizePod bool
}
