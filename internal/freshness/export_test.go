package freshness

// ForgetTrackers makes the metrics be about Trackers that are made from now on: those of other tests may still be
// there.
func ForgetTrackers() {
	trackers.mu.Lock()
	defer trackers.mu.Unlock()
	trackers.all = nil
}
