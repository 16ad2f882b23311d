package decoplan

// IsZero reports whether nothing is to be written.
func (p *Plan) IsZero() bool {
	return len(p.Writes)+len(p.Changes)+len(p.Resizes)+len(p.Statuses)+len(p.Protect)+len(p.Release) == 0
}
