package plugin

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"

	"kusionstack.io/kuperator/internal/insight"
)

// print writes a value as --output wants it: text, or the value's JSON form.
func (p *plugin) print(value any, text func(io.Writer)) error {
	switch p.output {
	case "":
		text(p.Out)
		return nil
	case "json":
		encoder := json.NewEncoder(p.Out)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		return encoder.Encode(value)
	case "yaml":
		out, err := yaml.Marshal(value)
		if err != nil {
			return err
		}
		_, err = p.Out.Write(out)
		return err
	}
	return fmt.Errorf("--output is %q: use json or yaml, or leave it out", p.output)
}

// checkOutput refuses an unknown format before anything is read or written.
func (p *plugin) checkOutput() error {
	if p.output == "" || p.output == "json" || p.output == "yaml" {
		return nil
	}
	return p.print(nil, nil)
}

// since is a time as people read it: how long ago, and when.
func since(t *time.Time, now time.Time) string {
	if t == nil {
		return ""
	}
	age := now.Sub(*t)
	if age < 0 {
		age = 0
	}
	return fmt.Sprintf("since %s (%s ago)", t.UTC().Format(time.RFC3339), duration.HumanDuration(age))
}

// ago is how long ago a time is; "" for nil.
func ago(t *time.Time, now time.Time) string {
	if t == nil {
		return ""
	}
	return duration.HumanDuration(max(0, now.Sub(*t))) + " ago"
}

// joined are the texts that are not empty, with two spaces between.
func joined(texts ...string) string {
	var kept []string
	for _, t := range texts {
		if t != "" {
			kept = append(kept, t)
		}
	}
	return strings.Join(kept, "  ")
}

// writeGaps says what is not said.
func writeGaps(w io.Writer, gaps []insight.Gap) {
	for _, g := range gaps {
		why := g.Why
		if g.Missing != "" {
			why = "you may not " + g.Missing
		}
		fmt.Fprintf(w, "not known: %s (%s)\n", g.Unsaid, why)
	}
}

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
