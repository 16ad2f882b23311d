package binaries

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"kusionstack.io/kuperator/internal/testkit/child"
)

const (
	// bytesPerCPUSecond is how much source a core compiles in a second, before it is known of the machine at hand.
	bytesPerCPUSecond = 70_000
	// priorPart is the part of the whole work for which that guess counts, against what is seen.
	priorPart = 0.05
	// perPackage is what a package costs beside its source, as bytes.
	perPackage = 10_000

	terminalInterval = time.Second
)

// CompileFlags are the flags of the go command for all that is compiled here, the product too: with other ones, or with
// cgo, what both have would be compiled twice.
var CompileFlags = []string{"-trimpath", "-buildvcs=false"}

// Compilation is a set of packages of one module to be compiled.
type Compilation struct {
	// Name is for people.
	Name string
	// Dir is the module's folder.
	Dir string
	// Flags are further ones of the go command.
	Flags []string
	// Packages are named as for go build.
	Packages []string
	// weights are those of the packages that Go's cache does not have, by import path.
	weights map[string]int64
}

// Compiler compiles, and shows how far it is.
type Compiler struct {
	out      io.Writer
	terminal bool
	now      func() time.Time

	mu          sync.Mutex
	weights     map[string]int64 // of all that is to be compiled
	total, done int64
	packages    int // done
	name        string
	begun       time.Time
	downloads   int
	shown       bool // a line is on the terminal
}

// NewCompiler returns a Compiler that shows its progress on out: on one line if that is a terminal, else a line now and
// then.
func NewCompiler(out io.Writer) *Compiler {
	file, isFile := out.(*os.File)
	terminal := isFile && os.Getenv("TERM") != "dumb"
	if terminal {
		info, err := file.Stat()
		terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return &Compiler{out: out, terminal: terminal, now: time.Now, weights: map[string]int64{}}
}

// Plan finds out what of the compilations Go's cache does not have; it downloads sources. What several of them need is
// counted once.
func (c *Compiler) Plan(ctx context.Context, compilations ...*Compilation) error {
	stop := everyInterval(c.interval(), func() {
		c.show(fmt.Sprintf("looking for what is to be compiled; %d modules downloaded", c.downloaded()))
	})
	defer stop()
	for _, of := range compilations {
		var out bytes.Buffer
		args := append([]string{"list", "-deps", "-f", "{{.ImportPath}}\t{{and .Stale (ne .StaleReason " +
			"\"not installed but available in build cache\")}}\t{{.Dir}}\t{{join .GoFiles \" \"}}"}, of.flags()...)
		if err := c.run(ctx, of, &out, append(args, of.Packages...)); err != nil {
			return err
		}
		of.weights = map[string]int64{}
		for line := range strings.Lines(out.String()) {
			fields := strings.Split(strings.TrimRight(line, "\n"), "\t")
			if len(fields) != 4 || fields[1] != "true" || c.weights[fields[0]] > 0 {
				continue
			}
			of.weights[fields[0]] = weigh(fields[2], strings.Fields(fields[3]))
		}
		maps.Copy(c.weights, of.weights)
	}
	c.total = 0
	for _, weight := range c.weights {
		c.total += weight
	}
	return nil
}

func weigh(dir string, files []string) int64 {
	weight := int64(perPackage)
	for _, file := range files {
		if info, err := os.Stat(filepath.Join(dir, file)); err == nil {
			weight += info.Size()
		}
	}
	return weight
}

// Packages is the number of packages that have been planned.
func (c *Compiler) Packages() int { return len(c.weights) }

// Estimate is about how long all of that takes.
func (c *Compiler) Estimate() time.Duration { return estimate(c.total, runtime.NumCPU()) }

func estimate(bytes int64, cores int) time.Duration {
	return time.Duration(float64(bytes) / bytesPerCPUSecond / float64(cores) * float64(time.Second))
}

// timeLeft is about how long the rest takes, by what has been done in which time, and at first by the estimate for the
// whole.
func timeLeft(done, total int64, elapsed, whole time.Duration) time.Duration {
	switch {
	case total <= 0 || done >= total:
		return 0
	case done == 0: // so far it was something else, such as linking
		return whole
	}
	part := float64(done) / float64(total)
	perPart := (elapsed.Seconds() + priorPart*whole.Seconds()) / (part + priorPart)
	return time.Duration((1 - part) * perPart * float64(time.Second))
}

// about is a duration as people say it.
func about(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return "some seconds"
	case d < 55*time.Second:
		return fmt.Sprintf("about %d seconds", int((d+5*time.Second)/(10*time.Second))*10)
	case d < 90*time.Second:
		return "about a minute"
	default:
		return fmt.Sprintf("about %d minutes", int((d+30*time.Second)/time.Minute))
	}
}

// Work names what of the compilations is left to do, with numbers of packages; "" if that is nothing.
func Work(compilations ...*Compilation) string {
	var parts []string
	for _, of := range compilations {
		if n := len(of.weights); n > 0 {
			parts = append(parts, fmt.Sprintf("%s (%d)", of.Name, n))
		}
	}
	return strings.Join(parts, ", ")
}

// Announce says what will be compiled and about how long that takes.
func (c *Compiler) Announce(compilations ...*Compilation) {
	c.clear()
	if work := Work(compilations...); work != "" {
		fmt.Fprintf(c.out, "to compile, once: %d Go packages, %s on the %d cores of this machine\n  %s\n",
			c.Packages(), about(c.Estimate()), runtime.NumCPU(), work)
	}
}

// Compile compiles what was planned, with further flags, such as -o.
func (c *Compiler) Compile(ctx context.Context, of *Compilation, flags ...string) error {
	c.mu.Lock()
	c.name = of.Name
	if c.begun.IsZero() {
		c.begun = c.now()
	}
	c.mu.Unlock()
	stop := everyInterval(c.interval(), func() { c.show(c.status()) })
	err := c.run(ctx, of, io.Discard, append(append(append([]string{"build", "-v"}, of.flags()...), flags...),
		of.Packages...))
	stop()
	c.clear()
	return err
}

// status is the line that shows how far everything is.
func (c *Compiler) status() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.packages >= len(c.weights) {
		return fmt.Sprintf("the last of %d packages are compiled and linked (%s)", len(c.weights), c.name)
	}
	left := timeLeft(c.done, c.total, c.now().Sub(c.begun), estimate(c.total, runtime.NumCPU()))
	return fmt.Sprintf("%d of %d packages compiled, %s left (now: %s)", c.packages, len(c.weights), about(left), c.name)
}

func (c *Compiler) interval() time.Duration {
	if c.terminal {
		return terminalInterval
	}
	return progressInterval
}

func (c *Compiler) show(line string) {
	if c.terminal {
		fmt.Fprintf(c.out, "\r%s\x1b[K", line)
		c.shown = true
		return
	}
	fmt.Fprintln(c.out, line)
}

// clear removes the line from a terminal.
func (c *Compiler) clear() {
	if c.shown {
		fmt.Fprint(c.out, "\r\x1b[K")
		c.shown = false
	}
}

func (of *Compilation) flags() []string {
	return append(append([]string{}, CompileFlags...), of.Flags...)
}

func (c *Compiler) downloaded() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.downloads
}

// heard takes a line of the go command's: a package that it has begun to compile, or a module that it downloads.
func (c *Compiler) heard(line string) (known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if weight := c.weights[line]; weight > 0 {
		c.packages++
		c.done += weight
		c.weights[line] = 0 // it is counted once
		return true
	}
	if strings.HasPrefix(line, "go: downloading ") {
		c.downloads++
		return true
	}
	return false
}

// run runs the go command of the machine in a module, alone with that module: no workspace, no cgo.
func (c *Compiler) run(ctx context.Context, of *Compilation, stdout io.Writer, args []string) error {
	cmd := goCommand(ctx, of.Dir, args...)
	cmd.Stdout = stdout
	pipe, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("go %s: %w", args[0], err)
	}
	var rest bytes.Buffer
	lines := bufio.NewScanner(pipe)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if !c.heard(lines.Text()) {
			fmt.Fprintln(&rest, lines.Text())
		}
	}
	_, _ = io.Copy(&rest, pipe)
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return fmt.Errorf("go %s: %w\n%s", args[0], err, child.LastLines(rest.Bytes(), 30))
	}
	return nil
}

func goCommand(ctx context.Context, moduleDir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = moduleDir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // lets it end its compilers
	cmd.WaitDelay = goStopGrace
	return cmd
}
