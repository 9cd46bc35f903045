package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/await"
	"github.com/godwit/godwit/internal/kernel/kerneltest"
)

func TestParseRecordLock(t *testing.T) {
	for text, want := range map[string]*RecordLock{
		"\t1: POSIX  ADVISORY  WRITE 4711 00:2b:55 0 EOF\n":   {Write: true},
		"\t2: POSIX  ADVISORY  READ  4711 00:2b:55 128 128\n": {Start: 128, Length: 1},
		"\t1: OFDLCK ADVISORY  WRITE -1 00:2b:55 0 EOF\n":     nil,
		"\t1: FLOCK  ADVISORY  WRITE 4711 00:2b:55 0 EOF\n":   nil,
		"\t1: POSIX  ADVISORY  WRITE 4711 00:2b:55 1073741824 9": {Write: true, Start: 1 << 30,
			Length: 10 - 1<<30},
	} {
		lock, ok, err := parseRecordLock(text)
		if err != nil || ok != (want != nil) || ok && lock != *want {
			t.Errorf("%q: %+v, %v, %v", text, lock, ok, err)
		}
	}
	for _, text := range []string{"", "1: POSIX", "\t1: POSIX  ADVISORY  WRITE 4711 00:2b:55 x EOF",
		"\t1: POSIX  ADVISORY  WRITE 4711 00:2b:55 0 x"} {
		if lock, ok, err := parseRecordLock(text); err == nil {
			t.Errorf("%q: %+v, %v", text, lock, ok)
		}
	}
}

// TestTakeRecordLocks takes locks on behalf of sleeping processes, and of one that does not wait.
func TestTakeRecordLocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "locked")
	kerneltest.Must(t, os.WriteFile(path, nil, 0o600))
	start := func(args ...string) int {
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		kerneltest.Must(t, err)
		defer file.Close()
		cmd := exec.Command(args[0], args[1:]...)
		cmd.ExtraFiles = []*os.File{file}
		kerneltest.Must(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd.Process.Pid
	}
	one, other, busy := start("sleep", "1h"), start("sleep", "1h"), start("sh", "-c", "while :; do :; done")
	awaitComputing(t, busy)
	locks := []RecordLock{{FD: 3, Start: 7, Length: 5}, {FD: 3, Write: true, Start: 100}}
	kerneltest.Must(t, TakeRecordLocks(one, locks))
	got, err := RecordLocks(one, 3)
	if err != nil || !slices.Equal(got, locks) {
		t.Errorf("it has %+v, %v", got, err)
	}
	kerneltest.Must(t, TakeRecordLocks(other, locks[:1])) // the lock is shared
	if err := TakeRecordLocks(other, locks[1:]); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("a lock that another has: %v", err)
	}
	if err := TakeRecordLocks(one, []RecordLock{{FD: 99}}); !errors.Is(err, unix.EBADF) {
		t.Errorf("no such descriptor: %v", err)
	}
	if err := TakeRecordLocks(busy, locks[:1]); !errors.Is(err, ErrUntraceable) {
		t.Errorf("one that does not wait: %v", err)
	}
	for _, pid := range []int{one, other, busy} {
		p, err := ReadProcess(pid)
		kerneltest.Must(t, err)
		if p.Tracer != 0 || p.State != 'S' && pid != busy {
			t.Errorf("process %d is in state %c, traced by %d", pid, p.State, p.Tracer)
		}
	}
}

// awaitComputing waits until a process has used the processor for a while: a shell that is still being
// loaded waits in system calls.
func awaitComputing(t *testing.T, pid int) {
	t.Helper()
	await.True(t, "a shell that computes", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		kerneltest.Must(t, err)
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		// utime, the 14th field of proc_pid_stat(5)
		ticks, err := strconv.Atoi(fields[11])
		kerneltest.Must(t, err)
		return ticks >= 5
	})
}
