package clocks

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/overlay"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// variable names the file that says by how many seconds a process's clock is fast; negative ones make it slow.
const variable = "TEST_CLOCK"

// ahead is a file of package time in the programs under test.
const ahead = `package time

import "syscall"

// ahead is by how many seconds the clock of this process is fast.
var ahead = readAhead()

func readAhead() (seconds int64) {
	path, _ := syscall.Getenv("` + variable + `")
	fd, err := syscall.Open(path, syscall.O_RDONLY, 0)
	if err != nil {
		return 0
	}
	var text [16]byte
	n, _ := syscall.Read(fd, text[:])
	syscall.Close(fd)
	sign := int64(1)
	for _, c := range text[:max(n, 0)] {
		switch {
		case c == '-':
			sign = -1
		case '0' <= c && c <= '9':
			seconds = 10*seconds + int64(c-'0')
		}
	}
	return sign * seconds
}
`

// clocks are those of the components. The zero value cannot be used.
type clocks struct{ dir string }

// overlay writes what go build -overlay needs, and returns its path.
func (c clocks) overlay(t *testing.T) string {
	t.Helper()
	goroot, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	require.NoError(t, err)
	std := filepath.Join(strings.TrimSpace(string(goroot)), "src", "time")
	fast := overlay.New(t, c.dir)
	// if it is not there any more, find where Now takes the time
	const now = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	fast.Change(filepath.Join(std, "time.go"), now, now+"\tsec += ahead\n")
	fast.Put(filepath.Join(std, "ahead.go"), ahead)
	return fast.Write()
}

// environment tells every component where its clock is.
func (c clocks) environment() map[string][]string {
	env := map[string][]string{}
	for _, component := range suite.Components() {
		env[component] = []string{variable + "=" + c.of(component)}
	}
	return env
}

func (c clocks) of(component string) string { return filepath.Join(c.dir, component) }

// set takes effect when the component starts the next time.
func (c clocks) set(t *testing.T, component string, fast time.Duration) {
	t.Helper()
	require.NoError(t, os.WriteFile(c.of(component), []byte(strconv.Itoa(int(fast/time.Second))), 0o600))
}
