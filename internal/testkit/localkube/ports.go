package localkube

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"kusionstack.io/kuperator/internal/testkit/localkube/binaries"
)

// The ports that are reserved: below those that systems give to processes that ask for any (from 32768 on Linux, 49152
// elsewhere), so that no connection or server of another program gets one by chance between its choice and its use.
const (
	firstPort, lastPort = 20000, 29999
	portAttempts        = 1000
)

// Ports are TCP ports on the loopback address on which no process listens, and which are not given to any other process
// that reserves ports here before Release or the end of this process.
type Ports struct {
	// Numbers are the ports, all different.
	Numbers []int
	held    []*os.File
}

// LockDir makes a folder for files that this user's processes lock, below CacheDir. It is not in the temporary
// directory, where another user could put a link of the same name first.
func LockDir(name string) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "locks", name)
	return dir, os.MkdirAll(dir, 0o700)
}

// ReservePorts reserves n ports.
func ReservePorts(n int) (*Ports, error) {
	dir, err := LockDir("ports")
	if err != nil {
		return nil, fmt.Errorf("looking for free ports: %w", err)
	}
	p := &Ports{}
	for range portAttempts {
		if len(p.Numbers) == n {
			return p, nil
		}
		if err := p.try(dir, firstPort+rand.N(lastPort-firstPort+1)); err != nil {
			p.Release()
			return nil, fmt.Errorf("looking for free ports: %w", err)
		}
	}
	p.Release()
	return nil, fmt.Errorf("no %d free ports found from %d to %d", n, firstPort, lastPort)
}

// try adds a port if it is free. The lock is on a file for each, which stays: to remove it would let two hold it.
func (p *Ports) try(dir string, port int) error {
	file, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(port)), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := binaries.TryLock(file); err != nil {
		if errors.Is(err, binaries.ErrLocked) {
			err = nil
		}
		return errors.Join(err, file.Close())
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(port)))
	if err != nil {
		return file.Close() // a process that does not reserve ports has it
	}
	if err := listener.Close(); err != nil {
		return errors.Join(err, file.Close())
	}
	p.Numbers, p.held = append(p.Numbers, port), append(p.held, file)
	return nil
}

// Release lets others have the ports. What listens on them goes on. Nil has none.
func (p *Ports) Release() {
	if p == nil {
		return
	}
	for _, file := range p.held {
		_ = file.Close() // the lock goes with it
	}
	p.held = nil
}
