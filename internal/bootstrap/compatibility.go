package bootstrap

import (
	"fmt"

	"github.com/spf13/pflag"
)

// Compatibility is the value of --compatibility: whose defaults and contracts a component keeps where nothing else is
// said.
type Compatibility string

// KuperatorV07 is the one value beside none: those of Kuperator v0.7 (docs/design/0031-drop-in-by-a-switch.md).
const KuperatorV07 Compatibility = "kuperator-v0.7"

// AddTo adds the flag, with a word on what it means for the component.
func (c *Compatibility) AddTo(fs *pflag.FlagSet, means string) {
	fs.Var(c, "compatibility",
		"Use the defaults and contracts of an earlier program wherever objects and flags do not set others. "+
			"The only value is "+string(KuperatorV07)+". "+means+
			" Must be the same for all components that have this flag.")
}

// Set reads the flag.
func (c *Compatibility) Set(value string) error {
	switch Compatibility(value) {
	case "", KuperatorV07:
		*c = Compatibility(value)
		return nil
	}
	return fmt.Errorf("%q is not known: use %q, or leave it empty", value, KuperatorV07)
}

// String is the value.
func (c *Compatibility) String() string { return string(*c) }

// Type names the kind of value in the help of a program.
func (*Compatibility) Type() string { return "string" }
