package shorten_test

import (
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"kusionstack.io/kuperator/internal/shorten"
)

func TestBytes(t *testing.T) {
	tests := map[string]struct {
		text string
		most int
		want string
	}{
		"nothing":                             {text: "", most: 5, want: ""},
		"a text that fits":                    {text: "drained", most: 7, want: "drained"},
		"a text that is one byte too long":    {text: "draining", most: 7, want: "drai..."},
		"bytes are counted, not characters":   {text: "größer", most: 7, want: "grö..."},
		"a text that fits with its umlauts":   {text: "größer", most: 8, want: "größer"},
		"no character is cut in two":          {text: "größer", most: 6, want: "gr..."},
		"a character of three bytes":          {text: "拒绝请求", most: 8, want: "拒..."},
		"what is no text is left out":         {text: "a\xffb", most: 2, want: "ab"},
		"room for the ellipsis alone":         {text: "draining", most: 3, want: "..."},
		"room for less than the ellipsis":     {text: "draining", most: 2, want: ".."},
		"no room at all":                      {text: "draining", most: 0, want: ""},
		"less than no room":                   {text: "draining", most: -1, want: ""},
		"a text that needs no ellipsis":       {text: "ab", most: 2, want: "ab"},
		"a character that is as long as most": {text: "拒", most: 3, want: "拒"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, shorten.Bytes(tc.text, tc.most)) })
	}
}

func TestBytesStaysWithinItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")) + rapid.String().Draw(t, "text")
		most := rapid.IntRange(-1, 40).Draw(t, "most")
		got := shorten.Bytes(text, most)
		assert.LessOrEqual(t, len(got), max(most, 0))
		assert.True(t, utf8.ValidString(got), "%q", got)
		if utf8.ValidString(text) && len(text) <= most {
			assert.Equal(t, text, got)
		}
	})
}
