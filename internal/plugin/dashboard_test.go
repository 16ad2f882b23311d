package plugin

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

func TestDashboardIsForThisMachine(t *testing.T) {
	for address, wrong := range map[string]string{
		"127.0.0.1:0": "", "localhost:8686": "", "[::1]:1": "",
		"0.0.0.0:80": "loopback", ":80": "loopback", "10.1.2.3:80": "loopback", "example.com:80": "loopback",
		"127.0.0.1": "host:port", "": "host:port",
	} {
		if err := loopback(address); wrong == "" {
			assert.NoError(t, err, address)
		} else {
			assert.ErrorContains(t, err, wrong, address)
		}
	}
}

func TestDashboardRefusesWhatItCannotDo(t *testing.T) {
	for args, says := range map[string]string{
		"dashboard -o json":                "status --watch",
		"dashboard --address 0.0.0.0:8686": "loopback address only",
		"dashboard web":                    "unknown command",
	} {
		var problems bytes.Buffer
		code := Run(t.Context(), strings.Fields(args),
			genericiooptions.IOStreams{In: strings.NewReader(""), Out: &bytes.Buffer{}, ErrOut: &problems})
		assert.Equal(t, codeError, code, args)
		assert.Contains(t, problems.String(), says, args)
	}
}
