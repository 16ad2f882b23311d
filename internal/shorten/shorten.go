// Package shorten fits texts into the fields that hold them. The API server refuses an event's note of more than 1,024
// bytes, and status has to fit into an object.
package shorten

import "strings"

// ellipsis is at the end of a text that was cut.
const ellipsis = "..."

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
