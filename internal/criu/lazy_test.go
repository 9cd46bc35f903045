package criu

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// lazyPair is a connection of a restore and its other end.
func lazyPair(t testing.TB, workDir string) (*LazyRestore, *net.UnixConn) {
	t.Helper()
	l, err := ListenLazy(workDir)
	must(t, err)
	// Relative to the directory, as CRIU does, because the path may be too long.
	dir, err := os.Open(workDir)
	must(t, err)
	defer dir.Close()
	conn, err := net.DialUnix("unix", nil,
		&net.UnixAddr{Name: "/proc/self/fd/" + itoa(int(dir.Fd())) + "/lazy-pages.socket", Net: "unix"})
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	r, err := l.Accept(context.Background())
	must(t, err)
	t.Cleanup(func() { r.Close() })
	return r, conn
}

func word(n int32) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(n)) }

func TestLazyRestore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	must(t, os.Mkdir(dir, 0o700))
	must(t, os.WriteFile(filepath.Join(dir, lazySocket), nil, 0o600)) // left by an earlier restore
	r, conn := lazyPair(t, dir)
	file, err := os.Open("/dev/null")
	must(t, err)
	defer file.Close()
	for _, message := range []struct {
		data  []byte
		files []int
	}{{word(42), nil}, {[]byte{0}, []int{int(file.Fd())}}, {word(-7), nil}, {word(lazyEnd), nil}} {
		var rights []byte
		if message.files != nil {
			rights = unix.UnixRights(message.files...)
		}
		_, _, err := conn.WriteMsgUnix(message.data, rights, nil)
		must(t, err)
	}
	task, _, err := r.Next()
	must(t, err)
	name, err := os.Readlink("/proc/self/fd/" + itoa(task.Faults))
	if task.PID != 42 || err != nil || name != "/dev/null" {
		t.Errorf("%+v, %s, %v", task, name, err)
	}
	must(t, unix.Close(task.Faults))
	if task, more, err := r.Next(); err != nil || !more || task.PID != 7 || task.Faults != -1 {
		t.Errorf("the zombie: %+v, %v", task, err)
	}
	if _, more, err := r.Next(); err != nil || more {
		t.Errorf("the end: %v, %v", more, err)
	}
}

func TestLazyRestoreFails(t *testing.T) {
	for name, data := range map[string][]byte{
		"nothing": nil, "half a word": word(42)[:2], "no descriptor": word(42),
		"a byte without": append(word(42), 0),
		"two words":      append(word(42), word(43)...), "no pid": word(0), "too large": word(maxPID + 1),
		"too small": word(-maxPID - 1),
	} {
		t.Run(name, func(t *testing.T) {
			r, conn := lazyPair(t, t.TempDir())
			_, err := conn.Write(data)
			must(t, err)
			must(t, conn.Close())
			_, _, err = r.Next()
			if err == nil {
				t.Error("Next succeeds")
			}
			if early := len(data) < 4 || name == "no descriptor"; errors.Is(err, ErrRestoreFailed) != early {
				t.Errorf("Next: %v", err)
			}
		})
	}
}

func TestLazyNobodyComes(t *testing.T) {
	l, err := ListenLazy(t.TempDir())
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := l.Accept(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Accept: %v", err)
	}
	must(t, l.Close())
	must(t, l.Close())
	if _, err := ListenLazy("/nowhere"); err == nil {
		t.Error("ListenLazy without a directory succeeds")
	}
}

func FuzzLazyRestore(f *testing.F) {
	f.Add(append(word(42), 0), true)
	f.Add(word(lazyEnd), false)
	f.Add(append(word(-3), word(lazyEnd)...), false)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte, withFile bool) {
		if len(data) > 4096 {
			return
		}
		r, conn := lazyPair(t, dir)
		go func() {
			defer conn.Close()
			var rights []byte
			if withFile {
				rights = unix.UnixRights(0)
			}
			head := min(4, len(data))
			_, _ = conn.Write(data[:head])
			_, _, _ = conn.WriteMsgUnix(data[head:], rights, nil)
		}()
		for range len(data) + 1 {
			task, more, err := r.Next()
			if err != nil || !more {
				if err == nil && !bytes.Contains(data, word(lazyEnd)) {
					t.Error("an end that was not sent")
				}
				return
			}
			if task.PID <= 0 || task.PID > maxPID {
				t.Errorf("%+v", task)
			}
			if task.Faults >= 0 {
				must(t, unix.Close(task.Faults))
			}
		}
		t.Error("more processes than were sent")
	})
}
