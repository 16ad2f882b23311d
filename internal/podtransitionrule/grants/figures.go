package grants

// BlockReason is the kind of check that keeps a Pod from going on.
type BlockReason string

const (
	// BlockedByAvailability: too many Pods are out of service already.
	BlockedByAvailability BlockReason = "availability"
	// BlockedByLabel: a label check fails.
	BlockedByLabel BlockReason = "label"
	// BlockedByWebhook: a webhook has not answered, or has said no.
	BlockedByWebhook BlockReason = "webhook"
	// BlockedByFreeze: the namespace or the cluster is frozen.
	BlockedByFreeze BlockReason = "frozen"
	// BlockedByInvalidRule: the rule cannot be evaluated.
	BlockedByInvalidRule BlockReason = "invalid"
	// BlockedByAnnotation: the annotation that names the Pod's employers cannot be read.
	BlockedByAnnotation BlockReason = "annotation"
	// BlockedByOtherRule: this rule has nothing against the Pod, another one of its rules has.
	BlockedByOtherRule BlockReason = "other_rule"
)

// BlockReasons are all there are.
func BlockReasons() []BlockReason {
	return []BlockReason{BlockedByAvailability, BlockedByLabel, BlockedByWebhook, BlockedByFreeze, BlockedByInvalidRule,
		BlockedByAnnotation, BlockedByOtherRule}
}

// Figures are what a rule does, in numbers of Pods.
type Figures struct {
	Name string
	// Limited is true if an availablePolicy bounds the rule's Pods. Allowed is how many of them may be out of service
	// at a time, Unavailable how many are; of several policies it is the one with the least room.
	Limited              bool
	Allowed, Unavailable int
	// Blocked are Pods that wait, by the first reason.
	Blocked map[BlockReason]int
}

// figures are those of every rule, by name.
func (d *decision) figures() []Figures {
	figures := make([]Figures, len(d.rules))
	for i, r := range d.rules {
		f := Figures{Name: r.Name, Blocked: map[BlockReason]int{}}
		for _, k := range r.checks {
			if p := k.policy; p != nil && p.allowed != unbounded &&
				(!f.Limited || p.allowed-p.unavailable < f.Allowed-f.Unavailable) {
				f.Limited, f.Allowed, f.Unavailable = true, p.allowed, p.unavailable
			}
		}
		for j := range d.verdicts[i] {
			if v := &d.verdicts[i][j]; !v.granted {
				f.Blocked[d.blocks(r, v)]++
			}
		}
		figures[i] = f
	}
	return figures
}

// blocks says why the rule does not let the Pod pass.
func (d *decision) blocks(r *rule, v *verdict) BlockReason {
	if d.frozenFor(v.pending) {
		return BlockedByFreeze
	}
	if v.unreadable() != "" {
		return BlockedByAnnotation
	}
	for _, reject := range v.rejects {
		for _, k := range r.checks {
			if k.name != reject.RuleName || k.stage != v.stage {
				continue
			}
			switch {
			case k.refusal != "":
				return BlockedByInvalidRule
			case k.webhook:
				return BlockedByWebhook
			case k.policy != nil:
				return BlockedByAvailability
			case k.requires != nil:
				return BlockedByLabel
			}
		}
	}
	return BlockedByOtherRule
}
