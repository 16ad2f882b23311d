package child

import (
	"bytes"
	"os"
)

// Crashes are what the log of a Go program says of panics, those that were caught among them, and of data races.
var Crashes = []string{"WARNING: DATA RACE", "\npanic: ", "Observed a panic"}

// LogTail returns the last lines of a log, at most n; why it cannot be read if that is so.
func LogTail(path string, n int) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return LastLines(content, n)
}

// LastLines returns the last lines of a text, at most n. Empty lines at its end do not count.
func LastLines(text []byte, n int) string {
	lines := bytes.Split(bytes.TrimRight(text, "\n"), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-n):], []byte("\n")))
}

// InLog returns, for each of the signs that a log has, where it is first: a little of what was before, and what came
// after.
func InLog(path string, signs ...string) ([]string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, sign := range signs {
		if at := bytes.Index(content, []byte(sign)); at >= 0 {
			found = append(found, string(content[max(0, at-300):min(len(content), at+3000)]))
		}
	}
	return found, nil
}
