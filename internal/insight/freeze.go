package insight

import (
	"fmt"
	"strings"
	"time"

	"kusionstack.io/kuperator/api/podops"
)

// Freeze is an emergency stop: nothing new is taken out of service meanwhile.
type Freeze struct {
	// Namespace is what is frozen; empty if it is the cluster.
	Namespace string `json:"namespace,omitempty"`
	Cluster   bool   `json:"cluster,omitempty"`
	// Why is what its author says, By the author and Until when it was meant to end, where the annotation tells. Nothing
	// ends a freeze by itself.
	Why   string     `json:"why"`
	By    string     `json:"by,omitempty"`
	Until *time.Time `json:"until,omitempty"`

	on string // the Namespace with the annotation for the cluster
}

const (
	freezeBy    = "; by "
	freezeUntil = "; until "
)

// Value is the annotation's value: "<why>; by <author>; until <RFC 3339>", as far as they are known.
func (f Freeze) Value() string {
	value := f.Why
	if f.By != "" {
		value += freezeBy + f.By
	}
	if f.Until != nil {
		value += freezeUntil + f.Until.UTC().Format(time.RFC3339)
	}
	return value
}

// ParseFreeze reads an annotation's value. Every value is a freeze: what is not in the form of Value is all Why.
func ParseFreeze(value string) Freeze {
	f := Freeze{Why: value}
	if at := strings.LastIndex(f.Why, freezeUntil); at >= 0 {
		if until, err := time.Parse(time.RFC3339, f.Why[at+len(freezeUntil):]); err == nil {
			f.Why, f.Until = f.Why[:at], &until
		}
	}
	if at := strings.LastIndex(f.Why, freezeBy); at >= 0 {
		f.Why, f.By = f.Why[:at], f.Why[at+len(freezeBy):]
	}
	return f
}

// text is the wait's message.
func (f *Freeze) text() string {
	if f.Cluster {
		return fmt.Sprintf("the cluster is frozen: %q", f.Value())
	}
	return fmt.Sprintf("namespace %s is frozen: %q", f.Namespace, f.Value())
}

// reason explains the freeze to whom it stops.
func (f *Freeze) reason(now time.Time) Reason {
	r := Reason{
		Code: codeFrozen, Message: f.text(), On: &Ref{Kind: "Namespace", Name: f.Namespace},
		Next: "ask its author, or end it: kubectl kuperator unfreeze " + f.Namespace,
	}
	if f.Cluster {
		r.On.Name = f.on
		r.Next = "ask its author, or end it: kubectl kuperator unfreeze --cluster"
	}
	if f.By != "" {
		r.Next = strings.Replace(r.Next, "its author", f.By, 1)
	}
	if f.Until != nil && now.After(*f.Until) {
		r.Next += ". It was meant to end at " + f.Until.UTC().Format(time.RFC3339) + ", and nothing ends a freeze by itself"
	}
	return r
}

// FreezeAnnotation is the key for a namespace, or for the cluster (on the suite's own Namespace).
func FreezeAnnotation(cluster bool) string {
	if cluster {
		return podops.FreezeClusterAnnotation
	}
	return podops.FreezeAnnotation
}
