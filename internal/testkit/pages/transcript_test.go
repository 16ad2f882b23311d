package pages

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTranscript(t *testing.T) {
	page := Read("page.md",
		[]byte(
			"```console\n$ kubectl get pods \\\n    -l app=web\nNAME   READY\nweb-x7k2z   1/1\n$ ls\n```\n\n```sh\nmake\n```\n```console\n$ false\nerror: no\n```\n"))
	steps := Steps(page)
	require.Equal(t, []Step{
		{Line: 2, Command: "kubectl get pods \\\n    -l app=web", Shown: []string{"NAME   READY", "web-x7k2z   1/1"}},
		{Line: 6, Command: "ls"},
		{Line: 10, Command: "make\n"},
		{Line: 13, Command: "false", Shown: []string{"error: no"}},
	}, steps)
	require.False(t, steps[0].FailsByDesign())
	require.True(t, steps[3].FailsByDesign())
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
		require.Equal(t, want, Missing(strings.Split(shown, "\n"), output), fmt.Sprintf("%q", shown))
	}
}
