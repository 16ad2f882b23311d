// Package fault breaks the suite at every write that it makes: see docs/design/0010-faults.md.
package fault
