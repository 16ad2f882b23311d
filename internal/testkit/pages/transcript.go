package pages

import (
	"regexp"
	"slices"
	"strings"
)

// Step is one command of a page and what the page shows that it prints.
type Step struct {
	// Line of the page at which the command begins.
	Line    int
	Command string
	// Shown are the lines below it; nil if the page shows none.
	Shown []string
}

// Steps are the commands of a page, in order: those after "$ " in blocks of console, and whole blocks of sh.
func Steps(page Page) []Step {
	var steps []Step
	for _, b := range page.Blocks {
		switch b.Language {
		case "sh":
			steps = append(steps, Step{Line: b.Line, Command: b.Text})
		case "console":
			steps = append(steps, transcript(b)...)
		}
	}
	return steps
}

func transcript(b Block) []Step {
	var steps []Step
	continued := false
	for i, line := range strings.Split(strings.TrimSuffix(b.Text, "\n"), "\n") {
		command, isCommand := strings.CutPrefix(line, "$ ")
		switch {
		case isCommand:
			steps = append(steps, Step{Line: b.Line + i, Command: command})
		case len(steps) == 0: // output of nothing
			steps = append(steps, Step{Line: b.Line + i, Command: "false # a block of console begins with $"})
		case continued:
			steps[len(steps)-1].Command += "\n" + line
		default:
			steps[len(steps)-1].Shown = append(steps[len(steps)-1].Shown, line)
		}
		continued = (isCommand || continued) && strings.HasSuffix(line, `\`)
	}
	return steps
}

// FailsByDesign reports whether the page shows the command being refused.
func (s Step) FailsByDesign() bool {
	return slices.ContainsFunc(s.Shown, func(line string) bool {
		return strings.HasPrefix(line, "Error from server") || strings.HasPrefix(line, "error: ")
	})
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

// Missing is the first shown line that the output lacks, "" if it has all of them in their order. A line "..." stands
// for any number of lines, and so does the space between two that are Shown: a page may leave lines out.
func Missing(shown []string, output string) string {
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

// Fill is the source of a page with what its steps printed where it shows "?".
func Fill(source string, steps []Step, printed []string) string {
	lines := strings.Split(source, "\n")
	for i, s := range slices.Backward(steps) {
		if !slices.Equal(s.Shown, []string{"?"}) {
			continue
		}
		at := s.Line + strings.Count(s.Command, "\n") // the "?", from 0
		lines = slices.Replace(lines, at, at+1, strings.Split(strings.TrimRight(printed[i], "\n "), "\n")...)
	}
	return regexp.MustCompile(`(?m)[ \t]+$`).ReplaceAllString(strings.Join(lines, "\n"), "")
}
