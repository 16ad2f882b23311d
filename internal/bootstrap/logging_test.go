package bootstrap

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheLogHasTheFormatAndLevelThatWereAskedFor(t *testing.T) {
	tests := map[string]struct {
		format, level string
		want          []string // messages, in order
	}{
		"json at info leaves details out":    {format: "json", level: "info", want: []string{"plain", "failed"}},
		"json at debug has the first detail": {format: "json", level: "debug", want: []string{"plain", "detail", "failed"}},
		"json at 4 has more": {format: "json", level: "4",
			want: []string{"plain", "detail", "minute", "failed"}},
		"json at 0 is info":             {format: "json", level: "0", want: []string{"plain", "failed"}},
		"json at error has only errors": {format: "json", level: "error", want: []string{"failed"}},
		"console at info":               {format: "console", level: "info", want: []string{"plain", "failed"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			o := &Options{Name: "example-controller", LogFormat: tc.format, LogLevel: tc.level}
			logger, err := o.logger(&out)
			require.NoError(t, err)
			logger.Info("plain", "count", 3)
			logger.V(1).Info("detail")
			logger.V(4).Info("minute")
			logger.Error(errors.New("it broke"), "failed")

			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			require.Len(t, lines, len(tc.want), "one line an entry, errors without a stack:\n%s", out.String())
			for i, line := range lines {
				if tc.format == "console" {
					require.Contains(t, line, tc.want[i])
					require.Error(t, json.Unmarshal([]byte(line), &map[string]any{}))
					continue
				}
				entry := map[string]any{}
				require.NoError(t, json.Unmarshal([]byte(line), &entry), line)
				require.Equal(t, tc.want[i], entry["msg"])
				require.Equal(t, "example-controller", entry["logger"])
				_, err := time.Parse(time.RFC3339Nano, entry["ts"].(string))
				require.NoError(t, err)
			}
		})
	}
}
