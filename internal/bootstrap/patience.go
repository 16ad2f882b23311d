package bootstrap

import (
	"bytes"
	"io"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"kusionstack.io/kuperator/internal/metric"
)

// logPatience is how long a line of the log may take to be written.
const logPatience = time.Second

var (
	logLinesLostMetric = metric.Metric{
		Name: "kuperator_log_lines_lost_total", Kind: metric.Counter, Unit: "lines",
		Help: "Lines that are missing in the log, because nobody took what was written before them.",
	}
	logLinesLost = logLinesLostMetric.CounterVec().WithLabelValues()
)

// patientWriter writes lines of the log, each before Write returns, where somebody takes them. A pipe that nobody empties would stop
// every goroutine at its next line, with the Lease kept: after a second a line is left to be written whenever that may be, and those
// behind it are lost and counted until it is. What a controller does is worth more than what it says.
type patientWriter struct {
	to       io.Writer
	patience time.Duration
	clock    clock.Clock
	// turn is held by the line that is being written.
	turn chan struct{}
	// stuck says that the line that is being written has run out of patience.
	stuck atomic.Bool
}

func newPatientWriter(to io.Writer, patience time.Duration) *patientWriter {
	return &patientWriter{to: to, patience: patience, clock: clock.RealClock{}, turn: make(chan struct{}, 1)}
}

// Write is part of io.Writer. The error is that of a write that ended in time.
func (w *patientWriter) Write(line []byte) (int, error) {
	if !w.takeTurn() {
		logLinesLost.Inc()
		return len(line), nil
	}
	own := bytes.Clone(line) // the caller may use its own again
	done := make(chan error, 1)
	go func() {
		_, err := w.to.Write(own)
		w.stuck.Store(false)
		<-w.turn
		done <- err
	}()
	patience := w.clock.NewTimer(w.patience)
	defer patience.Stop()
	select {
	case err := <-done:
		return len(line), err
	case <-patience.C():
		w.stuck.Store(true)
		return len(line), nil
	}
}

// takeTurn waits for the lines before, unless one of them is stuck.
func (w *patientWriter) takeTurn() bool {
	select {
	case w.turn <- struct{}{}:
		return true
	default:
	}
	if w.stuck.Load() {
		return false
	}
	patience := w.clock.NewTimer(w.patience)
	defer patience.Stop()
	select {
	case w.turn <- struct{}{}:
		return true
	case <-patience.C():
		w.stuck.Store(true)
		return false
	}
}
