//go:build unix

package controlplane

import (
	"bytes"
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"kusionstack.io/kuperator/internal/testkit/story"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

// TestNobodyReadsTheLog has components write their logs to pipes that are full and that nobody empties, as they do on a node whose
// container runtime hangs or whose disk is full: they work, and count the lines that are missing. When the pipes are emptied, the logs
// go on.
func TestNobodyReadsTheLog(t *testing.T) {
	plan(t, "jammed", "pipes of the logs jammed in a rollout", func(p *story.Plan) {
		components := []string{suite.Lifecycle}
		if story.All() {
			components = suite.Components()
		}
		p.WithRules("web", image1, 6, "2")
		jams := map[string]*jam{}
		for _, component := range components {
			jams[component] = jamLog(p, component)
			p.Fault("log of " + component + " jammed")
		}
		require.NoError(p, p.WaitLeading(p.Context(), components...))
		p.SetImage("web", image2)
		p.WaitAtRest("web", 6, image2)
		for _, component := range components {
			published, err := p.Metrics(p.Context(), component)
			require.NoError(p, err)
			require.Regexp(p, `(?m)^kuperator_log_lines_lost_total [1-9]`, published, component)
		}
		p.Checked("nothing waits for a line of the log")
		for _, component := range components {
			jams[component].read(p)
		}
		p.SetImage("web", image3)
		p.WaitAtRest("web", 6, image3)
		for _, component := range components {
			jams[component].end(p)
		}
	})
}

// jam is a component's log that is a pipe.
type jam struct {
	component, path, before string
	pipe                    *os.File
	ended                   bool
}

// jamLog starts a component anew, with a full pipe for a log.
func jamLog(p *story.Plan, component string) *jam {
	p.Helper()
	path := p.Logs(component)
	j := &jam{component: component, path: path, before: path + ".before"}
	require.NoError(p, p.StopComponent(component))
	require.NoError(p, os.Rename(path, j.before))
	p.Cleanup(func() { j.end(p) })
	require.NoError(p, syscall.Mkfifo(path, 0o600))
	pipe, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
	require.NoError(p, err)
	j.pipe = pipe
	require.NoError(p, pipe.SetWriteDeadline(time.Now().Add(200*time.Millisecond)))
	_, err = pipe.Write(make([]byte, 1<<22))
	require.ErrorIs(p, err, os.ErrDeadlineExceeded, "the pipe is full")
	require.NoError(p, p.Restart(p.Context(), component))
	return j
}

// read empties the pipe, and waits until the component writes to it again.
func (j *jam) read(p *story.Plan) {
	p.Helper()
	p.Eventually("a line in the log of "+j.component, func() error {
		buffer := make([]byte, 1<<20)
		if err := j.pipe.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			return err
		}
		n, err := j.pipe.Read(buffer)
		if len(bytes.Trim(buffer[:n], "\x00")) > 0 { // zeros are what filled it
			return nil
		}
		return errors.Join(errors.New("only what filled the pipe"), err)
	})
	go func() { // nothing of it is looked at
		_ = j.pipe.SetReadDeadline(time.Time{})
		_, _ = io.Copy(io.Discard, j.pipe)
	}()
}

// end has the component write to its former log again.
func (j *jam) end(p *story.Plan) {
	p.Helper()
	if j.ended {
		return
	}
	j.ended = true
	require.NoError(p, p.Kill(j.component))
	if j.pipe != nil {
		require.NoError(p, j.pipe.Close())
	}
	_ = os.Remove(j.path)
	require.NoError(p, os.Rename(j.before, j.path))
	require.NoError(p, p.Restart(p.Context(), j.component))
}
