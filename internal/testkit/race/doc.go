// Package race reports on the race detector: whether this program was built with it, and whether others can be.
// Components that tests start are built alike, and what the detector makes too slow is left out.
package race

import (
	"os/exec"
	"strings"
)

// Possible reports whether programs can be built with the race detector, which needs a C compiler.
func Possible() bool {
	if Enabled {
		return true
	}
	out, err := exec.Command("go", "env", "CC").Output()
	words := strings.Fields(string(out))
	if err != nil || len(words) == 0 {
		return false
	}
	_, err = exec.LookPath(words[0])
	return err == nil
}
