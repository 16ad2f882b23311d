package binaries

import (
	"errors"
	"os"
	"syscall"
)

// ErrLocked means that another process holds a lock.
var ErrLocked = errors.New("locked by another process")

// TryLock takes an exclusive lock that ends when the file is closed, or returns ErrLocked.
func TryLock(file *os.File) error {
	err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrLocked
	}
	return err
}
