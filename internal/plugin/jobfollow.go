package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/insight"
)

var (
	// errInterrupted means that the user stopped a command before what it follows has ended.
	errInterrupted = errors.New("interrupted")
	// errEnded and errGone end the following of a job.
	errEnded, errGone = errors.New("ended"), errors.New("deleted before it ended")
)

// followJob shows how far a job is until it ends. It is an error if the job fails. When the user ends the command
// before, the job goes on, and the error is errInterrupted.
func (p *plugin) followJob(ctx context.Context, s *session, job *appsv1alpha1.OperationJob) error {
	following, stop := context.WithCancel(ctx)
	defer stop()
	ref := refOfJob(job)
	out := p.Out
	if !p.isText() { // which is the job, at its end
		out = io.Discard
	}
	fmt.Fprintf(out, "%s created\n", shown(ref))
	view, isKnown := progressView{out: out}, false
	err := s.follow(following, job.Namespace, func(fleet insight.Fleet) error {
		at := slices.IndexFunc(fleet.Jobs, func(j insight.Job) bool { return j.Name == job.Name })
		if at < 0 {
			for _, g := range fleet.Gaps {
				if strings.HasPrefix(g.What, jobsResource) {
					return errors.New(g.Why)
				}
			}
			if isKnown {
				return errGone
			}
			return nil // the watch does not show it yet
		}
		isKnown = true
		view.show(&fleet.Jobs[at])
		if fleet.Jobs[at].Ended != nil {
			return errEnded
		}
		return nil
	})
	switch {
	case errors.Is(err, errEnded):
		return p.reportJob(ctx, s, job)
	case ctx.Err() != nil:
		fmt.Fprintf(p.ErrOut, "%s goes on\n", shown(ref))
		writeHowToGoOn(p.ErrOut, ref)
		return errInterrupted
	case errors.Is(err, errGone):
		return fmt.Errorf("%s was deleted before it ended", shown(ref))
	}
	return fmt.Errorf("%s goes on, and cannot be followed: %w", shown(ref), err)
}

// reportJob prints how a job has ended. It is an error if the job has failed.
func (p *plugin) reportJob(ctx context.Context, s *session, job *appsv1alpha1.OperationJob) error {
	ended, err := s.suite.AppsV1alpha1().OperationJobs(job.Namespace).Get(ctx, job.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading how operationjob/%s has ended: %w", job.Name, err)
	}
	ended.TypeMeta = typeOfJob()
	facts := insight.Facts{Now: s.now(), Jobs: []appsv1alpha1.OperationJob{*ended}}
	answer, _ := insight.Why(facts, refOfJob(ended), nil)
	var recreated, failed []string
	for i := range answer.Job.Targets {
		switch t := &answer.Job.Targets[i]; {
		case t.Error != nil:
			failed = append(failed, fmt.Sprintf("%s: %s: %s", t.Pod, t.Error.Code, t.Error.Message))
		case t.Recreated != "":
			recreated = append(recreated, fmt.Sprintf("%s was re-created, not restarted in place: %s", t.Pod, t.Recreated))
		}
	}
	isFailed := ended.Status.Progress == appsv1alpha1.OperationProgressFailed
	err = p.print(ended, func(w io.Writer) {
		if !isFailed {
			fmt.Fprintf(w, "operationjob/%s succeeded: %s\n", ended.Name, answer.Job.Done())
		}
		for _, line := range bounded(recreated) {
			fmt.Fprintln(w, "  "+line)
		}
	})
	switch {
	case err != nil || !isFailed:
		return err
	case len(failed) == 0 && answer.Blocker != nil: // the job as a whole
		failed = []string{fmt.Sprintf("%s: %s", answer.Blocker.Code, answer.Blocker.Message)}
	}
	return fmt.Errorf("operationjob/%s failed: %s\n  %s", ended.Name, answer.Job.Done(),
		strings.Join(bounded(failed), "\n  "))
}

// bounded are the first lines, as many as fit a screen, and how many there are besides.
func bounded(lines []string) []string {
	if len(lines) <= maxTargets {
		return lines
	}
	return append(slices.Clone(lines[:maxTargets]), fmt.Sprintf("and %d more", len(lines)-maxTargets))
}

// progressView shows how far a job is: on a terminal over what was there, elsewhere in a line for each change.
type progressView struct {
	out io.Writer
	// drawn is how many lines of the terminal it takes.
	drawn int
	// last is what the last line was about.
	last string
}

func (v *progressView) show(j *insight.Job) {
	done := j.Done()
	if j.UnderWay > 0 {
		done += fmt.Sprintf(", %d under way", j.UnderWay)
	}
	waits, code := "", insight.Code("")
	if len(j.Reasons) > 0 && j.Ended == nil && j.Reasons[0].Code != insight.CodeNotObserved { // which is said
		code = j.Reasons[0].Code
		waits = fmt.Sprintf("waits for %s: %s", code, j.Reasons[0].Message)
	}
	if file, isFile := v.out.(interface{ Fd() uintptr }); isFile && term.IsTerminal(int(file.Fd())) {
		width, _, err := term.GetSize(int(file.Fd()))
		if err != nil {
			width = 80
		}
		v.draw([]string{bar(j) + " " + done, "  " + waits}, width)
		return
	}
	if now := done + string(code); now != v.last { // messages have numbers, which are no news
		fmt.Fprintln(v.out, joined(done, waits))
		v.last = now
	}
}

// draw puts lines in place of those that were drawn before. None is longer than a line of the terminal.
func (v *progressView) draw(lines []string, width int) {
	if v.drawn > 0 {
		fmt.Fprintf(v.out, "\033[%dF", v.drawn)
	}
	for _, line := range lines {
		if runes := []rune(line); len(runes) >= width {
			line = string(runes[:max(0, width-2)]) + "…"
		}
		fmt.Fprintf(v.out, "%s\033[K\n", line)
	}
	v.drawn = len(lines)
}
