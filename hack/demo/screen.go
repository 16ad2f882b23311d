package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"kusionstack.io/kuperator/internal/testkit/suite"
)

const (
	bold, dim, red, green, yellow, blue, cyan = "1", "2", "31", "32", "33", "34", "36"

	widest    = 120
	textWidth = 100
	barWidth  = 20
)

// screen is where the demo shows itself: a picture redrawn in place on a
// terminal, a line per change elsewhere.
type screen struct {
	out    io.Writer
	in     io.Reader
	fd     int
	asks   bool // a person can press Enter
	live   bool
	colour bool

	told  string // what was told last in this stage
	drawn int    // lines of the picture on the terminal
	last  map[string]row
	begin time.Time
}

func newScreen(out *os.File, plain bool) *screen {
	fd := int(out.Fd())
	live := term.IsTerminal(fd) && !plain && os.Getenv("TERM") != "dumb"
	return &screen{out: out, in: os.Stdin, fd: fd, live: live, colour: live && os.Getenv("NO_COLOR") == "",
		asks: asksPeople(os.Stdin, out), last: map[string]row{}, begin: time.Now()}
}

// Write prints progress lines, dimmed. It makes the screen an io.Writer for
// what reports progress.
func (s *screen) Write(p []byte) (int, error) {
	s.rest()
	for line := range strings.Lines(string(p)) {
		s.print(s.paint(dim, strings.TrimRight(line, "\n")))
	}
	return len(p), nil
}

// print prints lines below whatever is there.
func (s *screen) print(text string) {
	fmt.Fprintln(s.out, text)
}

// rest leaves the picture where it is; what comes next goes below it.
func (s *screen) rest() {
	if s.live && s.drawn > 0 {
		fmt.Fprint(s.out, "\x1b[?25h")
	}
	s.drawn = 0
}

// stage begins a new picture below the last one.
func (s *screen) stage(title, why string) {
	s.rest()
	s.told = ""
	if !s.live {
		s.print("\n== " + title)
		for _, line := range wrap(why, textWidth) {
			s.print("   " + line)
		}
	}
}

// draw shows the picture, and tells what is new in it.
func (s *screen) draw(p picture, news []string) {
	if !s.live {
		for _, sentence := range news {
			s.print(fmt.Sprintf("%6.1fs  > %s", time.Since(s.begin).Seconds(), sentence))
		}
		s.changes(p)
		return
	}
	if len(news) > 0 {
		s.told = news[len(news)-1]
	}
	width, height, err := term.GetSize(s.fd)
	if err != nil || width < 40 {
		width, height = 80, 24
	}
	lines := s.lines(p, min(width-1, widest))
	if len(lines) > height-1 { // a picture taller than the terminal cannot be redrawn
		lines = append(lines[:height-2], s.paint(dim, "… more Pods than lines"))
	}
	var b bytes.Buffer
	b.WriteString("\x1b[?2026h\x1b[?25l") // one update, no cursor
	if s.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dF", s.drawn)
	}
	for _, line := range lines {
		b.WriteString(line + "\x1b[K\n")
	}
	b.WriteString("\x1b[J\x1b[?2026l")
	_, _ = s.out.Write(b.Bytes())
	s.drawn = len(lines)
}

// lines are the picture, each at most width columns.
func (s *screen) lines(p picture, width int) []string {
	clock := fmt.Sprintf("%5.1f s", p.elapsed.Seconds())
	title := clip(p.title, width-len(clock)-3)
	head := s.paint(bold+";"+cyan, "▶ "+title) + strings.Repeat(" ", max(1, width-2-columns(title)-len(clock))) +
		s.paint(bold, clock)
	lines := []string{"", head}
	for _, line := range wrap(p.why, min(width-2, textWidth)) {
		lines = append(lines, "  "+line)
	}
	lines = append(lines, "")
	n, of, words := p.progress()
	lines = append(lines, "  progress  "+s.bar(n, of, barWidth, green)+fmt.Sprintf("  %d of %d %s", n, of, words))
	if p.rule.Allowed >= 0 && p.rule.Name != "" {
		colour := blue
		if out := p.out(); out >= p.rule.Allowed && out > 0 {
			colour = yellow
		}
		lines = append(lines, "  budget    "+s.bar(p.out(), max(p.rule.Allowed, 1), barWidth, colour)+
			fmt.Sprintf("  %d of %d out of service (%s of %d)", p.out(), p.rule.Allowed, maxUnavailable, p.rule.Desired))
	}
	if p.writes != nil {
		lines = append(lines, "  writes    "+clip(writesLine(p.writes), width-12))
	}
	lines = append(lines, "  "+s.paint(bold, clip("now       "+s.told, width-2)), "")
	return append(lines, s.table(p, width)...)
}

func writesLine(counts map[string]suite.Counts) string {
	var parts []string
	for _, component := range suite.Components() {
		if n := counts[component].Total(); n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", short(component), n))
		}
	}
	if len(parts) == 0 {
		return "none to Pods yet"
	}
	return "to Pods: " + strings.Join(parts, " · ")
}

func short(component string) string {
	return strings.TrimSuffix(strings.TrimSuffix(component, "-controller"), "-server")
}

// table is a line per Pod.
func (s *screen) table(p picture, width int) []string {
	nameWidth := 3
	for _, r := range p.rows {
		nameWidth = max(nameWidth, columns(r.name))
	}
	nameWidth = min(nameWidth, 24)
	imageWidth := 6
	if p.stuck {
		imageWidth = columns(p.goalImage)
	}
	layout := fmt.Sprintf("  %%-%ds %%3s  %%-11s %%-8s %%-%ds %%-5s %%-7s ", nameWidth, imageWidth)
	left := max(0, width-columns(fmt.Sprintf(layout, "", "", "", "", "", "", "")))
	lines := []string{s.paint(dim, fmt.Sprintf(layout, "POD", "ID", "PHASE", "REVISION", "IMAGE", "READY", "SERVICE")+
		clip("WAITS FOR", left))}
	for _, r := range p.rows {
		plain := fmt.Sprintf(layout, clip(r.name, nameWidth), fmt.Sprint(r.id), clip(phaseOf(r), 11), r.revision,
			clip(r.image, imageWidth), yesNo(r.ready), service(r))
		lines = append(lines, s.paint(colourOf(r, p.goalImage), plain)+s.paint(dim, clip(r.waits, left)))
	}
	return lines
}

func phaseOf(r row) string {
	if r.phase == "" {
		return "-"
	}
	return r.phase
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func service(r row) string {
	if r.serving && !r.leaving {
		return "in"
	}
	return "out"
}

func colourOf(r row, goal string) string {
	switch {
	case r.leaving:
		return red
	case !r.serving || !r.ready:
		return yellow
	case r.image == goal && r.phase == "":
		return green
	default:
		return ""
	}
}

func (s *screen) bar(n, of, width int, colour string) string {
	filled := 0
	if of > 0 {
		filled = min(width, n*width/of)
	}
	return s.paint(colour, strings.Repeat("█", filled)) + s.paint(dim, strings.Repeat("░", width-filled))
}

func (s *screen) paint(codes, text string) string {
	if !s.colour || codes == "" || text == "" {
		return text
	}
	return "\x1b[" + codes + "m" + text + "\x1b[0m"
}

// changes prints a line for each Pod that changed.
func (s *screen) changes(p picture) {
	at := time.Since(s.begin).Seconds()
	seen := map[string]row{}
	for _, r := range p.rows {
		seen[r.name] = r
		before, known := s.last[r.name]
		r.waits = "" // changes too often to be news
		before.waits = ""
		if !known || before != r {
			s.print(fmt.Sprintf("%6.1fs  %-12s id %-3d %-11s %-6s %-13s ready %-3s service %-3s  out %d of %d",
				at, r.name, r.id, phaseOf(r), r.revision, r.image, yesNo(r.ready), service(r), p.out(), p.rule.Allowed))
		}
	}
	var gone []string
	for name := range s.last {
		if _, there := seen[name]; !there {
			gone = append(gone, name)
		}
	}
	slices.Sort(gone)
	for _, name := range gone {
		s.print(fmt.Sprintf("%6.1fs  %-12s gone", at, name))
	}
	s.last = seen
}

// wrap breaks a text into lines of at most width columns, if its words allow it.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && columns(line)+1+columns(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

// columns is the width of a text without colours.
func columns(text string) int { return utf8.RuneCountInString(text) }

// clip shortens a text to a number of columns.
func clip(text string, width int) string {
	if columns(text) <= width {
		return text
	}
	if width < 2 {
		return ""
	}
	return string([]rune(text)[:width-1]) + "…"
}
