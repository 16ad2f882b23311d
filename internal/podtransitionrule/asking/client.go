package asking

import (
	"time"

	"kusionstack.io/kuperator/internal/callout"
)

// maxAnswer is how many bytes of an answer are read; a longer one is an error.
const maxAnswer = 1 << 20

// unprepared is an error on the way to a request: nothing was sent, and it may be over the next time.
type unprepared struct{ error }

func (u unprepared) Unwrap() error { return u.error }

func newClient(targets *callout.Targets, timeout time.Duration) *callout.Client {
	return callout.NewClient(callout.Options{
		Targets: targets, Timeout: timeout, MaxAnswer: maxAnswer, UserAgent: "podtransitionrule-controller",
	})
}

// parseTargets reads the list of servers that rules may ask.
func parseTargets(list []string) (*callout.Targets, error) {
	return callout.ParseTargets(list,
		callout.Asker{Who: "webhook rules", Flag: "--rule-webhook-allow of podtransitionrule-controller"})
}
