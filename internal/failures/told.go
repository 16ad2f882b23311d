// Package failures reads errors, above all answers of the API server: which of them are refusals that trying again does
// not change, and what status and events tell of them.
package failures

import (
	"cmp"
	"errors"
	"regexp"
	"slices"
	"strings"
)

var (
	// ofTime is a point in time, together with a word before it that makes it one that stays the same.
	ofTime = regexp.MustCompile(
		`(?i)(?:\b(?:after|before|until|since) )?"?\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?: ?Z| ?[+-]\d\d:?\d\d)?(?: m=[+-][\d.]+)?"?`)
	// ofRequest is the ID of a request, as clouds and webhooks give it, and ofObject a UID.
	ofRequest = regexp.MustCompile(
		`(?i)\b(request[ _-]?id|trace[ _-]?id|correlation[ _-]?id)\b["':= ]*(?:[\w-]*\d[\w-]*|[0-9a-f]{8,}\b)"?`)
	ofObject = regexp.MustCompile(`(?i)"?\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"?`)
	// ofConnection is the own end of a connection, which has another port each time.
	ofConnection = regexp.MustCompile(`(?:\[[0-9a-fA-F:%.\w]+\]|\d+\.\d+\.\d+\.\d+):\d+->`)
	// numbered and named are the object that a text of ours begins with, by its instance ID or its name.
	numbered = regexp.MustCompile(`^[^:"]*\binstance ID (\d+)`)
	named    = regexp.MustCompile(`^[^:"]*?\b(?:Pod|claim) ([^\s:"]+)`)
	spaces   = regexp.MustCompile(` {2,}`)
)

// generated is what the API server appends to a generateName, of which it uses no more than longestPrefix bytes.
const (
	generated     = `[bcdfghjklmnpqrstvwxz2456789]{5}`
	longestPrefix = 58
)

// told is an error with the text to tell of it.
type told struct {
	text  string
	cause error
}

func (t *told) Error() string { return t.text }
func (t *told) Unwrap() error { return t.cause }

// Told is an error with a text for status and events, nil for nil: that of Text.
func Told(err error) error {
	if err == nil {
		return nil
	}
	return &told{Text(err), err}
}

// Text is what status and events tell of failures. Attempts that fail for one reason give one text, so that they are
// one event and one write of status: what differs by chance is left out, failures that were joined come each once and
// in one order, and of those that differ only in what they are about one stands for all.
func Text(err error) string {
	if err == nil {
		return ""
	}
	of := map[string]string{}
	for _, text := range parts(err) {
		key, about := text, numbered.FindStringSubmatch(text)
		if about == nil {
			about = named.FindStringSubmatch(text)
		}
		if about != nil {
			key = strings.ReplaceAll(text, about[1], "*")
		}
		if other, known := of[key]; !known || earlier(text, other) {
			of[key] = text
		}
	}
	texts := make([]string, 0, len(of))
	for _, text := range of {
		texts = append(texts, text)
	}
	slices.Sort(texts)
	return strings.Join(texts, "; ")
}

// earlier reports whether a text comes before another that differs only in a name or a number.
func earlier(a, b string) bool { return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) < 0 }

// parts are the texts of errors that were joined.
func parts(err error) []string {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || err.Error() != errors.Join(joined.Unwrap()...).Error() {
		return []string{Steady(err.Error())}
	}
	var all []string
	for _, e := range joined.Unwrap() {
		all = append(all, parts(e)...)
	}
	return all
}

// Steady leaves out of a text what differs from attempt to attempt: times, UIDs, IDs of requests, the ports of
// connections.
func Steady(text string) string {
	text = ofTime.ReplaceAllStringFunc(text, func(found string) string {
		if strings.ContainsAny(found[:1], "abusABUS") {
			return found
		}
		return ""
	})
	text = ofConnection.ReplaceAllString(text, "")
	text = ofRequest.ReplaceAllString(text, "$1")
	text = ofObject.ReplaceAllString(text, "")
	return strings.TrimSpace(spaces.ReplaceAllString(strings.ReplaceAll(text, "\n", " "), " "))
}

// Unnamed is an error of creating an object with a generated name, nil for nil: its text is without the name, which is
// another one with each attempt.
func Unnamed(err error, generateName string) error {
	if err == nil || generateName == "" {
		return err
	}
	return &told{WithoutNames(err.Error(), generateName), err}
}

// WithoutNames leaves out of a text the quoted names that were generated from a prefix, and what was generated of those
// that are not quoted.
func WithoutNames(text, generateName string) string {
	prefix := regexp.QuoteMeta(generateName[:min(len(generateName), longestPrefix)])
	text = regexp.MustCompile(` ?["']`+prefix+generated+`["']`).ReplaceAllString(text, "")
	return regexp.MustCompile(`\b(`+prefix+`)`+generated+`\b`).ReplaceAllString(text, "$1*")
}
