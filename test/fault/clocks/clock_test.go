package clocks

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/suite"
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
	source, err := os.ReadFile(filepath.Join(std, "time.go"))
	require.NoError(t, err)
	const now = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	require.Equal(t, 1, strings.Count(string(source), now), "package time has changed: find where Now takes the time")
	changed := strings.Replace(string(source), now, now+"\tsec += ahead\n", 1)
	replace := map[string]string{
		filepath.Join(std, "time.go"):  c.write(t, "time.go", changed),
		filepath.Join(std, "ahead.go"): c.write(t, "ahead.go", ahead),
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	return c.write(t, "overlay.json", string(list))
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
	c.write(t, component, strconv.Itoa(int(fast/time.Second)))
}

func (c clocks) write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(c.dir, name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}
