package podops

import (
	"fmt"
	"slices"
	"strings"
)

const (
	// AskersSuffix, after the key of a mark such as collaset.kusionstack.io/to-replace, is the annotation that records
	// who asked for the mark: names with commas between them. It is there only if one of them has a name.
	// Written through Mark, Withdraw, ForgetAsker and Unmark.
	AskersSuffix = "-askers"
	// AskerOther stands for users and programs that know the mark only.
	AskerOther = "other"
	// AskerEviction is an eviction of the Pod, that is, a call of the Eviction API.
	AskerEviction = "eviction"
	// AskerEvictionRequest is an EvictionRequest for the Pod (KEP-4563), while it is lifecycle-controller's turn to
	// respond.
	AskerEvictionRequest = "evictionrequest"
	// AskerDrain is the state of the Pod's node: it is about to be drained. It asks no more when the node takes Pods
	// again.
	AskerDrain = "drain"
)

// Askers returns who asks for a mark, a label of the Pod, sorted: AskerOther for a mark without a record, and nil
// without the mark, whatever its record says.
func Askers(v View, label string) []string {
	if _, marked := v.Labels[label]; !marked {
		return nil
	}
	askers := recorded(v, label)
	if len(askers) == 0 {
		return []string{AskerOther}
	}
	slices.Sort(askers)
	return slices.Compact(askers)
}

// MarkedBy reports whether the Pod has the mark and the asker is one of those who ask for it.
func MarkedBy(v View, label, asker string) bool { return slices.Contains(Askers(v, label), asker) }

// Recorded reports whether the record of a mark names the asker, whether or not the mark is there. Where it does and
// MarkedBy is false, the mark was taken away, and the asker has been cancelled.
func Recorded(v View, label, asker string) bool { return slices.Contains(recorded(v, label), asker) }

// recorded returns the names in the record of a mark.
func recorded(v View, label string) []string {
	return slices.DeleteFunc(strings.Split(v.Annotations[label+AskersSuffix], ","),
		func(name string) bool { return name == "" })
}

// Mark sets a mark, and records the asker beside those who asked before. A mark that is there keeps its value. It
// changes nothing if the asker is recorded already. It returns an error if the name is empty or contains a comma. An
// asker that was recorded, and for which MarkedBy is now false, has been cancelled and must not ask again.
func Mark(v View, label, value, asker string) (Change, error) {
	if asker == "" || strings.Contains(asker, ",") {
		return Change{}, fmt.Errorf("asker %q cannot be recorded: give it a name without a comma", asker)
	}
	if MarkedBy(v, label, asker) {
		return Change{}, nil
	}
	c := record(v, label, append(Askers(v, label), asker))
	if _, marked := v.Labels[label]; !marked {
		c.Labels = map[string]*string{label: &value}
	}
	return c, nil
}

// Withdraw removes an asker, and the mark if no other asker is left. It also removes a record whose mark is gone.
func Withdraw(v View, label, asker string) Change {
	rest := slices.DeleteFunc(Askers(v, label), func(name string) bool { return name == asker })
	if len(rest) == 0 {
		return Unmark(v, label)
	}
	return record(v, label, rest)
}

// ForgetAsker is Withdraw, except where the mark is gone: then it removes the asker alone from the record, by which the
// others know that they were cancelled. It changes nothing if the asker is not recorded.
func ForgetAsker(v View, label, asker string) Change {
	switch {
	case !Recorded(v, label, asker):
		return Change{}
	case MarkedBy(v, label, asker):
		return Withdraw(v, label, asker)
	default:
		return record(v, label, slices.DeleteFunc(recorded(v, label), func(name string) bool { return name == asker }))
	}
}

// Unmark removes the mark and its record: this cancels for all askers.
func Unmark(v View, label string) Change {
	c := record(v, label, nil)
	if _, marked := v.Labels[label]; marked {
		c.Labels = map[string]*string{label: nil}
	}
	return c
}

// record is the change after which the record has these names. A record of AskerOther alone is not stored.
func record(v View, label string, askers []string) Change {
	key := label + AskersSuffix
	slices.Sort(askers)
	value, recorded := v.Annotations[key]
	switch next := strings.Join(askers, ","); {
	case next == value && recorded:
		return Change{}
	case next != "" && next != AskerOther:
		return Change{Annotations: map[string]*string{key: &next}}
	case recorded:
		return Change{Annotations: map[string]*string{key: nil}}
	default:
		return Change{}
	}
}
