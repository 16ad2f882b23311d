package haproxy

import (
	"encoding/csv"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// found is one server as one HAProxy process has it.
type found struct {
	endpoint netip.AddrPort
	weight   int
	// admin are the administrative states: maintenance, drain, and where each comes from. 0 is ready.
	admin int
	// sessions are those that the server has and those that wait for it.
	sessions int
}

// The bits of found.admin that hold back a server, from HAProxy's enum srv_admin (include/haproxy/server-t.h): forced,
// inherited, by the configuration, by name resolution, by a host name.
const (
	maintenance = 0x01 | 0x02 | 0x04 | 0x20 | 0x40
	drain       = 0x08 | 0x10
)

// taking reports whether HAProxy chooses the server for new sessions.
func (f found) taking() bool { return f.admin&(maintenance|drain) == 0 }

// held reports whether no session at all gets to the server. One that only drains still gets those of clients that
// stick to it.
func (f found) held() bool { return f.admin&maintenance != 0 }

// server is what is set of it.
func (f found) server() Server {
	return Server{Endpoint: f.endpoint, Weight: f.weight, Out: !f.taking()}
}

// observe reads the servers of these backends that pick chooses, by path, "<backend>/<server>"; nil stands for all
// backends. A backend that does not exist has none.
//
// States are read before sessions, so that a server that is out is seen with all the sessions it will ever have.
func (s *session) observe(backends []string, pick func(path string) bool) (map[string]found, error) {
	if backends == nil {
		return s.observeOne("", pick)
	}
	all := map[string]found{}
	for _, backend := range backends {
		some, err := s.observeOne(backend, pick)
		if err != nil {
			return nil, err
		}
		for path, f := range some {
			all[path] = f
		}
	}
	return all, nil
}

func (s *session) observeOne(backend string, pick func(path string) bool) (map[string]found, error) {
	text, err := s.do(strings.TrimSpace("show servers state " + backend))
	var refused *commandError
	if errors.As(err, &refused) && strings.Contains(refused.answer, "find backend") {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	states, proxy, err := parseStates(text, pick)
	if err != nil || len(states) == 0 {
		return nil, err
	}
	if backend == "" {
		proxy = "-1"
	}
	// By number: of a frontend and a backend of one name, HAProxy would choose either. 4 is for servers, -1 for all.
	text, err = s.do("show stat " + proxy + " 4 -1")
	if err != nil {
		return nil, err
	}
	sessions, err := parseSessions(text)
	if err != nil {
		return nil, err
	}
	for path, f := range states {
		n, ok := sessions[path]
		if !ok {
			return nil, fmt.Errorf("HAProxy tells no sessions of server %s: it was removed meanwhile", path)
		}
		f.sessions = n
		states[path] = f
	}
	return states, nil
}

// parseStates reads the answer to "show servers state", and the number of the last backend in it.
func parseStates(text string, pick func(path string) bool) (map[string]found, string, error) {
	lines := strings.Split(text, "\n")
	if len(lines) < 2 || strings.TrimSpace(lines[0]) != "1" || !strings.HasPrefix(lines[1], "# ") {
		return nil, "", fmt.Errorf("HAProxy answers with states of servers in a format that is not version 1: %.80q", text)
	}
	column := map[string]int{}
	for i, name := range strings.Fields(strings.TrimPrefix(lines[1], "# ")) {
		column[name] = i
	}
	states, proxy := map[string]found{}, ""
	for _, line := range lines[2:] {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		r := row{strings.Split(line, " "), column}
		path := r.text("be_name") + "/" + r.text("srv_name")
		if !pick(path) {
			continue
		}
		proxy = r.text("be_id")
		admin, err1 := r.number("srv_admin_state")
		weight, err2 := r.number("srv_uweight")
		port, err3 := r.number("srv_port")
		address, err4 := netip.ParseAddr(r.text("srv_addr"))
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			return nil, "", fmt.Errorf("HAProxy's answer about server %s: %w", path, err)
		}
		states[path] = found{endpoint: netip.AddrPortFrom(address, uint16(port)), admin: admin,
			weight: weight} //nolint:gosec // a port that HAProxy has
	}
	return states, proxy, nil
}

// parseSessions reads the answer to "show stat": by server, the sessions under way and those in its queue.
func parseSessions(text string) (map[string]int, error) {
	r := csv.NewReader(strings.NewReader(strings.TrimPrefix(text, "# ")))
	r.FieldsPerRecord, r.LazyQuotes = -1, true
	records, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("HAProxy's statistics: %w", err)
	}
	if len(records) == 0 {
		return nil, errors.New("HAProxy's statistics are empty")
	}
	column := map[string]int{}
	for i, name := range records[0] {
		column[name] = i
	}
	sessions := make(map[string]int, len(records)-1)
	for _, record := range records[1:] {
		r := row{record, column}
		current, err1 := r.number("scur")
		queued, err2 := r.number("qcur")
		path := r.text("pxname") + "/" + r.text("svname")
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("HAProxy's statistics of %s: %w", path, err)
		}
		sessions[path] = current + queued
	}
	return sessions, nil
}

// row is a line of a table whose columns have names: versions of HAProxy add some.
type row struct {
	fields []string
	column map[string]int
}

func (r row) text(name string) string {
	i, ok := r.column[name]
	if !ok || i >= len(r.fields) {
		return ""
	}
	return r.fields[i]
}

func (r row) number(name string) (int, error) {
	n, err := strconv.Atoi(r.text(name))
	if err != nil {
		return 0, fmt.Errorf("%s is %q, not a number", name, r.text(name))
	}
	return n, nil
}

// process tells one HAProxy process from the next.
type process struct {
	pid    string
	uptime int
}

// process reads which process answers.
func (s *session) process() (process, error) {
	text, err := s.do("show info")
	if err != nil {
		return process{}, err
	}
	p := process{uptime: -1}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch name {
		case "Pid":
			p.pid = value
		case "Uptime_sec":
			if p.uptime, err = strconv.Atoi(value); err != nil {
				return process{}, fmt.Errorf("HAProxy's information: Uptime_sec is %q", value)
			}
		}
	}
	if p.pid == "" || p.uptime < 0 {
		return process{}, errors.New("HAProxy's information lacks Pid or Uptime_sec")
	}
	return p, nil
}

// follows reports whether p answered after earlier in the life of one process. In a container every process may have
// one ID.
func (p process) follows(earlier process) bool {
	return p.pid == earlier.pid && p.uptime >= earlier.uptime
}
