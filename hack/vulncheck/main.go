// Command vulncheck runs govulncheck over the project and fails on a vulnerability that a program or a package of
// api/ can reach and that ignored.txt does not excuse, and on an excuse that is not needed any more. Without a
// database that can be read it says so and checks nothing.
package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/vuln/scan"
)

const (
	onlineDatabase = "https://vuln.go.dev"
	// localDatabase is a copy of it beside the project, where one is.
	localDatabase = "../shared/vulndb"
	probeTimeout  = 15 * time.Second
)

//go:embed ignored.txt
var ignoredList string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := flag.String("root", ".", "folder of the project")
	database := flag.String("db", "", "vulnerability database, a URL (default: "+localDatabase+" if it is there, else "+
		onlineDatabase+")")
	flag.Parse()
	if err := run(ctx, *root, *database, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "vulncheck:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, root, database string, out io.Writer) error {
	excused, err := parseIgnored(ignoredList)
	if err != nil {
		return err
	}
	if database == "" {
		if database, err = findDatabase(ctx, root, onlineDatabase); err != nil {
			return err
		}
	}
	if database == "" {
		fmt.Fprintf(out, "vulnerabilities: not checked: %s cannot be reached and there is no copy at %s\n", onlineDatabase,
			localDatabase)
		return nil
	}
	start := time.Now()
	found, err := scanned(ctx, root, database, "./cmd/...", "./api/...")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "vulnerabilities: looked for in %s for %s\n", database, time.Since(start).Round(time.Second))
	return verdict(found, excused, out)
}

// findDatabase returns the database's URL, or nothing if there is none to be had.
func findDatabase(ctx context.Context, root, online string) (string, error) {
	local, err := filepath.Abs(filepath.Join(root, localDatabase))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(local, "index", "db.json")); err == nil {
		return "file://" + filepath.ToSlash(local), nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, online+"/index/db.json", nil)
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", nil //nolint:nilerr // not reachable is an answer
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return "", nil
	}
	return online, nil
}

// finding is a vulnerability that code can reach.
type finding struct {
	id, module, version, fixed string
	summary                    string
	call                       string // the first function of the vulnerable module that is called
}

// scanned runs govulncheck and returns what can be reached, by the vulnerability's identifier.
func scanned(ctx context.Context, root, database string, patterns ...string) (map[string]finding, error) {
	var report, problems bytes.Buffer
	command := scan.Command(ctx, append([]string{"-C", root, "-db", database, "-format", "json"}, patterns...)...)
	command.Stdout, command.Stderr = &report, &problems
	command.Env = append(os.Environ(), "GOWORK=off")
	if err := command.Start(); err != nil {
		return nil, err
	}
	if err := command.Wait(); err != nil {
		return nil, fmt.Errorf("govulncheck: %w\n%s", err, bytes.TrimSpace(problems.Bytes()))
	}
	return parseReport(&report)
}

// parseReport reads govulncheck's stream of JSON objects. Only a finding whose first frame is a function is reached;
// the others mean that a vulnerable module or package is there.
func parseReport(report io.Reader) (map[string]finding, error) {
	type message struct {
		OSV *struct {
			ID      string `json:"id"`
			Summary string `json:"summary"`
		} `json:"osv"`
		Finding *struct {
			OSV   string `json:"osv"`
			Fixed string `json:"fixed_version"`
			Trace []struct {
				Module   string `json:"module"`
				Version  string `json:"version"`
				Package  string `json:"package"`
				Function string `json:"function"`
				Receiver string `json:"receiver"`
			} `json:"trace"`
		} `json:"finding"`
		Config *struct{} `json:"config"`
	}
	summaries, found, complete := map[string]string{}, map[string]finding{}, false
	for decoder := json.NewDecoder(report); ; {
		var m message
		err := decoder.Decode(&m)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("reading govulncheck's report: %w", err)
		}
		complete = complete || m.Config != nil
		if m.OSV != nil {
			summaries[m.OSV.ID] = m.OSV.Summary
		}
		if m.Finding == nil || len(m.Finding.Trace) == 0 || m.Finding.Trace[0].Function == "" {
			continue
		}
		at := m.Finding.Trace[0]
		call := at.Package + "." + at.Function
		if at.Receiver != "" {
			call = at.Package + "." + strings.TrimPrefix(at.Receiver, "*") + "." + at.Function
		}
		found[m.Finding.OSV] = finding{id: m.Finding.OSV, module: at.Module, version: at.Version, fixed: m.Finding.Fixed,
			call: call}
	}
	if !complete {
		return nil, errors.New("govulncheck reported nothing at all")
	}
	for id, f := range found {
		f.summary = summaries[id]
		found[id] = f
	}
	return found, nil
}

// parseIgnored reads lines of an identifier and the reason why it is let be; # begins a comment.
func parseIgnored(text string) (map[string]string, error) {
	excused := map[string]string{}
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		id, reason, _ := strings.Cut(line, " ")
		if strings.TrimSpace(reason) == "" {
			return nil, fmt.Errorf("ignored.txt excuses %s without a reason", id)
		}
		excused[id] = strings.TrimSpace(reason)
	}
	return excused, nil
}

func verdict(found map[string]finding, excused map[string]string, out io.Writer) error {
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(found)) {
		f := found[id]
		if reason := excused[id]; reason != "" {
			fmt.Fprintf(out, "%s in %s %s is let be: %s\n", id, f.module, f.version, reason)
			continue
		}
		mend := "go get " + f.module + "@" + f.fixed
		switch {
		case f.fixed == "":
			mend = "there is no version without it"
		case f.module == "stdlib":
			mend = "build with Go " + strings.TrimPrefix(f.fixed, "v")
		}
		errs = append(errs,
			fmt.Errorf("%s (%s) is reached in %s %s through %s: %s, or excuse it in hack/vulncheck/ignored.txt with the reason",
				id, f.summary, f.module, f.version, f.call, mend))
	}
	for _, id := range slices.Sorted(maps.Keys(excused)) {
		if _, still := found[id]; !still {
			errs = append(errs, fmt.Errorf("ignored.txt excuses %s, which is not found any more: remove it", id))
		}
	}
	return errors.Join(errs...)
}
