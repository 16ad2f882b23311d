package bootstrap

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/await"
)

func TestALogThatNobodyReadsStopsNobody(t *testing.T) {
	reader, writer := io.Pipe() // holds nothing: a write ends when it is read
	w := newPatientWriter(writer, 10*time.Millisecond)
	before := testutil.ToFloat64(logLinesLost)
	line := []byte("first\n")
	n, err := w.Write(line)
	require.NoError(t, err)
	copy(line, "other") // a logger uses its buffer again
	require.Equal(t, len("first\n"), n)
	var loggers sync.WaitGroup
	for range 10 {
		loggers.Go(func() {
			for range 100 {
				_, err := w.Write([]byte("lost\n"))
				assert.NoError(t, err)
			}
		})
	}
	loggers.Wait()
	require.InDelta(t, before+1000, testutil.ToFloat64(logLinesLost), 0)

	lines := bufio.NewScanner(reader)
	require.True(t, lines.Scan())
	require.Equal(t, "first", lines.Text(), "it was left to be written")
	await.Nil(t, "the end of the first write", func() error {
		if w.stuck.Load() {
			return errors.New("it is stuck")
		}
		return nil
	})
	go func() {
		_, _ = w.Write([]byte("again\n"))
		_ = writer.Close()
	}()
	require.True(t, lines.Scan())
	require.Equal(t, "again", lines.Text(), "the log goes on when it is read")
	require.False(t, lines.Scan())
}

func TestLinesAreWrittenWholeAndBeforeTheCallReturns(t *testing.T) {
	var out bytes.Buffer
	w := newPatientWriter(&out, time.Minute)
	_, err := w.Write([]byte("one\n"))
	require.NoError(t, err)
	require.Equal(t, "one\n", out.String())
	out.Reset()
	var loggers sync.WaitGroup
	for i := range 20 {
		loggers.Go(func() {
			for range 50 {
				_, _ = fmt.Fprintf(w, "%s\n", strings.Repeat(string(rune('a'+i)), 100))
			}
		})
	}
	loggers.Wait()
	for line := range strings.Lines(out.String()) {
		require.Equal(t, strings.Repeat(line[:1], len(line)-1)+"\n", line)
	}
	require.Equal(t, 1000, strings.Count(out.String(), "\n"), "none is lost where somebody takes them")
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestAFailedWriteIsAnError(t *testing.T) {
	_, err := newPatientWriter(broken{}, time.Minute).Write([]byte("line\n"))
	require.ErrorContains(t, err, "no space left")
}
