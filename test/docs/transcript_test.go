package docs

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/pages"
)

// step is one command of a page and what the page shows that it prints.
type step struct {
	// line of the page at which the command begins.
	line    int
	command string
	// shown are the lines below it; nil if the page shows none.
	shown []string
}

// stepsOf are the commands of a page, in order: those after "$ " in blocks of console, and whole blocks of sh.
func stepsOf(page pages.Page) []step {
	var steps []step
	for _, b := range page.Blocks {
		switch b.Language {
		case "sh":
			steps = append(steps, step{line: b.Line, command: b.Text})
		case "console":
			steps = append(steps, transcript(b)...)
		}
	}
	return steps
}

func transcript(b pages.Block) []step {
	var steps []step
	continued := false
	for i, line := range strings.Split(strings.TrimSuffix(b.Text, "\n"), "\n") {
		command, isCommand := strings.CutPrefix(line, "$ ")
		switch {
		case isCommand:
			steps = append(steps, step{line: b.Line + i, command: command})
		case len(steps) == 0: // output of nothing
			steps = append(steps, step{line: b.Line + i, command: "false # a block of console begins with $"})
		case continued:
			steps[len(steps)-1].command += "\n" + line
		default:
			steps[len(steps)-1].shown = append(steps[len(steps)-1].shown, line)
		}
		continued = (isCommand || continued) && strings.HasSuffix(line, `\`)
	}
	return steps
}

// failsByDesign reports whether the page shows the command being refused.
func (s step) failsByDesign() bool {
	return len(s.shown) > 0 && (strings.HasPrefix(s.shown[0], "Error from server") ||
		strings.HasPrefix(s.shown[0], "error: "))
}

// What differs from one run to the next: random suffixes and hashes of names, times, addresses.
var varying = []struct{ is, as string }{
	{`-[bcdfghjklmnpqrstvwxz2456789]{8,10}(-[bcdfghjklmnpqrstvwxz2456789]{5})?\b`, "-HASH"},
	{`-[bcdfghjklmnpqrstvwxz2456789]{5}\b`, "-RANDOM"},
	{`\b([0-9]+(\.[0-9]+)?(ms|[smhd]))+( ago)?\b`, "AGE"},
	{`\b[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z`, "TIME"},
	{`\b[0-9]{1,3}(\.[0-9]{1,3}){3}\b`, "ADDRESS"},
	{`\bnode-[0-9]+\b`, "NODE"},
	{`docs-[a-z0-9-]+`, "NAMESPACE"},
	{`[ \t]+`, " "},
}

// alike brings a line into a form in which runs are alike.
func alike(line string) string {
	for _, v := range varying {
		line = regexp.MustCompile(v.is).ReplaceAllString(line, v.as)
	}
	return strings.TrimSpace(line)
}

// missing is the first shown line that the output lacks, "" if it has all of them in their order. A line "..." stands
// for any number of lines, and so does the space between two that are shown: a page may leave lines out.
func missing(shown []string, output string) string {
	lines := strings.Split(output, "\n")
	for _, line := range shown {
		if strings.TrimSpace(line) == "..." || strings.TrimSpace(line) == "" {
			continue
		}
		at := 0
		for at < len(lines) && alike(lines[at]) != alike(line) {
			at++
		}
		if at == len(lines) {
			return line
		}
		lines = lines[at+1:]
	}
	return ""
}

func TestTranscript(t *testing.T) {
	page := pages.Read("page.md",
		[]byte(
			"```console\n$ kubectl get pods \\\n    -l app=web\nNAME   READY\nweb-x7k2z   1/1\n$ ls\n```\n\n```sh\nmake\n```\n```console\n$ false\nerror: no\n```\n"))
	steps := stepsOf(page)
	require.Equal(t, []step{
		{line: 2, command: "kubectl get pods \\\n    -l app=web", shown: []string{"NAME   READY", "web-x7k2z   1/1"}},
		{line: 6, command: "ls"},
		{line: 10, command: "make\n"},
		{line: 13, command: "false", shown: []string{"error: no"}},
	}, steps)
	require.False(t, steps[0].failsByDesign())
	require.True(t, steps[3].failsByDesign())
}

func TestMissing(t *testing.T) {
	output := "NAME   READY  AGE\nweb-22b4z   1/1   12s\nweb-c9d4z   0/1   1m3s\n"
	for shown, want := range map[string]string{
		"NAME READY AGE\nweb-xxkz2 1/1 3s":               "",
		"NAME READY AGE\n...\nweb-xxkz2 0/1 3s":          "",
		"web-xxkz2 0/1 3s\nNAME READY AGE":               "NAME READY AGE",
		"web-xxkz2 1/1 3s\nweb-xxkz2 1/1 3s":             "web-xxkz2 1/1 3s",
		"other-xxkz2 1/1 3s":                             "other-xxkz2 1/1 3s",
		"web-xxkz2 1/1 3s\nweb-xxkz2 0/1 3s\nand more":   "and more",
		"web-xxkz2 1/1 3s\n\nweb-xxkz2   0/1    20m5s  ": "",
	} {
		require.Equal(t, want, missing(strings.Split(shown, "\n"), output), fmt.Sprintf("%q", shown))
	}
}
