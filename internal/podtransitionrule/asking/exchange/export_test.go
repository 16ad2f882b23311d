package exchange

// Idle reports whether nothing is kept that a new Inquiry would not have.
func (i *Inquiry) Idle() bool {
	return len(i.subjects) == 0 && len(i.tasks) == 0 && len(i.history) == 0 && len(i.flights) == 0
}
