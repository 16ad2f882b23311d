package plugin

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"kusionstack.io/kuperator/internal/insight"
)

// cell is a text, with the escape sequence of its colour if it has one.
type cell struct{ text, colour string }

// column is a column of a table.
type column struct {
	head  string
	cells []cell
}

// writeTable writes columns side by side. A column without any text is left out.
func writeTable(w io.Writer, indent string, columns []column) {
	columns = slices.DeleteFunc(columns, func(c column) bool {
		return !slices.ContainsFunc(c.cells, func(c cell) bool { return c.text != "" })
	})
	if len(columns) == 0 {
		return
	}
	widths := make([]int, len(columns))
	for i, c := range columns {
		widths[i] = utf8.RuneCountInString(c.head)
		for _, one := range c.cells {
			widths[i] = max(widths[i], utf8.RuneCountInString(one.text))
		}
	}
	row := func(of func(column) cell) {
		var line strings.Builder
		gap := ""
		for i, c := range columns {
			if one := of(c); one.text != "" {
				line.WriteString(gap + painted(one))
				gap = strings.Repeat(" ", widths[i]-utf8.RuneCountInString(one.text)+3)
			} else {
				gap += strings.Repeat(" ", widths[i]+3)
			}
		}
		fmt.Fprintf(w, "%s%s\n", indent, line.String())
	}
	row(func(c column) cell { return cell{text: c.head} })
	for i := range columns[0].cells {
		row(func(c column) cell { return c.cells[i] })
	}
}

// Colours, as escape sequences of a terminal.
const (
	green  = "\033[32m"
	yellow = "\033[33m"
	red    = "\033[31m"
	plain  = "\033[0m"
)

func painted(c cell) string {
	if c.colour == "" {
		return c.text
	}
	return c.colour + c.text + plain
}

// colourOf is the colour of a Pod's state.
func colourOf(s insight.State) string {
	switch s {
	case insight.StateServing:
		return green
	case insight.StateDown:
		return red
	case insight.StateEnded:
		return ""
	case insight.StateWaiting, insight.StateLeaving, insight.StateOperating, insight.StateReturning,
		insight.StateStarting, insight.StateTerminating:
		return yellow
	}
	return ""
}

// isTerminal reports whether the output is a terminal.
func (p *plugin) isTerminal() bool {
	file, ok := p.Out.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(file.Fd()))
}

// coloured reports whether states are coloured: on a terminal, unless NO_COLOR (no-color.org) is set.
func (p *plugin) coloured() bool {
	return p.isTerminal() && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
