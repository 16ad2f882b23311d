package haproxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"time"
)

// maxAnswer bounds what is read of one answer: a hundred thousand servers and more.
const maxAnswer = 128 << 20

// prompt ends every answer of a session, at the beginning of a line. It is what tells a whole answer from one that was
// cut off because the process ended.
const prompt = "> "

// session is one connection to the Runtime API in interactive mode, in which commands are sent one at a time and each
// answer has an end. It is for one goroutine.
//
// The runtime client of github.com/haproxytech/client-native/v6 (v6.2.0) cannot stand here: its readFromSocket takes
// any read error for the end of the answer, so that a process that dies while it answers looks like one without our
// servers, and "not known" would become "not serving"; it dials Unix sockets only; and it heeds no context, so that a
// process that hangs would hold a caller for a minute. An end mark sent along would have to go through its ExecuteRaw,
// which leaves nothing of it to use: its parsers are not exported, and know no weights.
// docs/adapters/haproxy.md has the comparison.
type session struct {
	conn net.Conn
	in   *bufio.Reader
	stop func() bool
}

// commandError is what HAProxy answered to a command that it refused.
type commandError struct {
	command, answer string
}

func (e *commandError) Error() string {
	return fmt.Sprintf("HAProxy refuses %q: %s", e.command, e.answer)
}

// dial opens a session. It ends, and every call on it fails, when ctx does.
func dial(ctx context.Context, network, address string) (*session, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	s := &session{conn: conn, in: bufio.NewReader(conn)}
	// a time long ago ends a call under way
	s.stop = context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	for _, command := range []string{"prompt", "set severity-output number"} {
		if _, err := s.do(command); err != nil {
			s.close()
			return nil, err
		}
	}
	return s, nil
}

func (s *session) close() {
	s.stop()
	_ = s.conn.Close()
}

// severity is how an answer that is a message begins; 0 to 3 are errors.
var severity = regexp.MustCompile(`^\[([0-7])\]: `)

// do sends one command and returns what HAProxy answers. A *commandError means that HAProxy refused it; any other
// error, that it is not known whether the command was carried out.
func (s *session) do(command string) (string, error) {
	// names are checked where they come from; this is the last line of defence
	if strings.ContainsAny(command, ";\\\r\n") {
		return "", fmt.Errorf("command %q holds more than one command", command)
	}
	if _, err := s.conn.Write([]byte(command + "\n")); err != nil {
		return "", fmt.Errorf("sending %q: %w", command, plain(err))
	}
	answer, err := s.answer()
	if err != nil {
		return "", fmt.Errorf("reading the answer to %q: %w", command, err)
	}
	level := severity.FindStringSubmatch(answer)
	text := severity.ReplaceAllString(answer, "")
	if level != nil && level[1] <= "3" || strings.HasPrefix(text, "Unknown command") { // the latter comes as information
		first, _, _ := strings.Cut(text, "\n")
		return "", &commandError{command: command, answer: first}
	}
	return text, nil
}

// answer reads up to the prompt.
func (s *session) answer() (string, error) {
	var all strings.Builder
	for {
		start, err := s.in.Peek(len(prompt))
		if string(start) == prompt {
			_, _ = s.in.Discard(len(prompt))
			return strings.TrimSpace(all.String()), nil
		}
		if err != nil && len(start) == 0 {
			return "", fmt.Errorf("the answer is not complete: %w", plain(err))
		}
		line, err := s.in.ReadString('\n')
		if err != nil {
			return "", fmt.Errorf("the answer is not complete: %w", plain(err))
		}
		if all.Len()+len(line) > maxAnswer {
			return "", errors.New("the answer does not end")
		}
		all.WriteString(line)
	}
}

// plain leaves out the addresses of a connection: one of them has another port each time, and the same failure would be
// told again and again.
func plain(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
