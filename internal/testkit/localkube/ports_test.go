package localkube

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNoPortIsReservedTwice(t *testing.T) {
	t.Setenv(CacheVariable, t.TempDir())
	const askers, each = 20, 20
	all := make([]*Ports, askers)
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() {
			ports, err := ReservePorts(each)
			require.NoError(t, err)
			all[i] = ports
		})
	}
	wg.Wait()
	seen := map[int]bool{}
	for _, ports := range all {
		require.Len(t, ports.Numbers, each)
		for _, port := range ports.Numbers {
			require.False(t, seen[port], "port %d is reserved twice", port)
			seen[port] = true
		}
		ports.Release()
		ports.Release() // does nothing
	}
}

func TestAPortThatIsInUseIsNotReserved(t *testing.T) {
	dir := t.TempDir()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	p := &Ports{}
	require.NoError(t, p.try(dir, listener.Addr().(*net.TCPAddr).Port))
	require.Empty(t, p.Numbers)
}

func TestAReservedPortCanBeListenedOnAndIsFreeForOthersAfterRelease(t *testing.T) {
	t.Setenv(CacheVariable, t.TempDir())
	ports, err := ReservePorts(1)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", ports.Numbers[0]))
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	var none *Ports
	none.Release()

	dir, other := t.TempDir(), &Ports{}
	require.NoError(t, other.try(dir, ports.Numbers[0]))
	again := &Ports{}
	require.NoError(t, again.try(dir, ports.Numbers[0]))
	require.Empty(t, again.Numbers, "it is held")
	other.Release()
	require.NoError(t, again.try(dir, ports.Numbers[0]))
	require.Equal(t, ports.Numbers, again.Numbers)
}

func TestLocksFollowNoLinkInTheTemporaryDirectory(t *testing.T) {
	shared, private, elsewhere := t.TempDir(), t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", shared)
	t.Setenv(CacheVariable, private)
	// the name it once had
	require.NoError(t, os.Symlink(elsewhere, filepath.Join(shared, fmt.Sprintf("kuperator-ports-%d", os.Getuid()))))
	ports, err := ReservePorts(3)
	require.NoError(t, err)
	defer ports.Release()

	for _, dir := range []string{elsewhere, shared} {
		var files []string
		require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if entry.Type().IsRegular() {
				files = append(files, path)
			}
			return err
		}))
		require.Empty(t, files)
	}
	locks, err := LockDir("ports")
	require.NoError(t, err)
	info, err := os.Stat(locks)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
}
