// Package shorten fits texts into the fields that hold them: status has to fit into an object.
package shorten

import "strings"

// ellipsis is at the end of a text that was cut.
const ellipsis = "..."

// MaxNote bounds the note of an event, in bytes: the API server refuses more than 1,024.
const MaxNote = 1000

// Note returns text cut to what an event may hold.
func Note(text string) string { return Bytes(text, MaxNote) }

// Bytes returns text cut to at most so many bytes, as valid UTF-8. A text that was cut ends with "...", or with as much
// of it as there is room for.
func Bytes(text string, most int) string {
	text = strings.ToValidUTF8(text, "")
	switch {
	case len(text) <= most:
		return text
	case most <= len(ellipsis):
		return ellipsis[:max(most, 0)]
	}
	return strings.ToValidUTF8(text[:most-len(ellipsis)], "") + ellipsis
}
