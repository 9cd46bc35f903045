package cgroup

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/kerneltest"
)

// readers is a group with threads that read a clock all the time.
type readers struct {
	*Cgroup
	counts string
	number int
}

func newReaders(t *testing.T, mount string, number int) *readers {
	t.Helper()
	program := filepath.Join(t.TempDir(), "clocks")
	if out, err := exec.Command("gcc", "-O1", "-pthread", "-o", program,
		"testdata/clocks/clocks.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	dir := filepath.Join(mount, fmt.Sprintf("godwit-clocks-%d", os.Getpid()))
	kerneltest.Must(t, os.Mkdir(dir, 0o755))
	group, err := At(dir)
	kerneltest.Must(t, err)
	r := &readers{Cgroup: group, counts: filepath.Join(t.TempDir(), "counts"), number: number}
	kerneltest.Must(t, os.WriteFile(r.counts, make([]byte, 16*number), 0o600))
	cmd := exec.Command(program, fmt.Sprint(number), r.counts)
	kerneltest.Must(t, cmd.Start())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		err := errors.Join(group.Kill(ctx), group.Thaw())
		_ = cmd.Wait() // it was killed
		if err := errors.Join(err, group.Remove()); err != nil {
			t.Error(err)
		}
	})
	kerneltest.Must(t, os.WriteFile(dir+"/cgroup.procs", fmt.Append(nil, cmd.Process.Pid), 0))
	r.goOn(t)
	return r
}

// read returns how often each thread has read the clock, and checks that the clock never went back.
func (r *readers) read(t *testing.T) []uint64 {
	t.Helper()
	data, err := os.ReadFile(r.counts)
	kerneltest.Must(t, err)
	counts := make([]uint64, r.number)
	for i := range counts {
		counts[i] = binary.NativeEndian.Uint64(data[16*i:])
		if back := binary.NativeEndian.Uint64(data[16*i+8:]); back > 0 {
			t.Fatalf("the clock of thread %d went back %d times", i, back)
		}
	}
	return counts
}

// goOn waits until each thread has read the clock again.
func (r *readers) goOn(t *testing.T) {
	t.Helper()
	before := r.read(t)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		on := 0
		for i, n := range r.read(t) {
			if n > before[i] {
				on++
			}
		}
		if on == r.number {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d threads read the clock", on, r.number)
		}
	}
}

func TestFreezeToMove(t *testing.T) {
	for version, mount := range kerneltest.Freezers(t) {
		t.Run(version, func(t *testing.T) {
			r := newReaders(t, mount, 8)
			for inside := 0; inside < 8; { // until the check has certainly found some
				_, err := r.Freeze(t.Context())
				kerneltest.Must(t, err)
				reading, err := r.reading(nil)
				kerneltest.Must(t, err)
				inside += len(reading)
				kerneltest.Must(t, r.Thaw())
				r.goOn(t)
			}
			for range 10 {
				r.freezesToMove(t)
			}
		})
	}
}

func (r *readers) freezesToMove(t *testing.T) {
	t.Helper()
	_, err := r.FreezeToMove(t.Context())
	kerneltest.Must(t, err)
	frozen, err := r.Frozen()
	kerneltest.Must(t, err)
	reading, err := r.reading(nil)
	kerneltest.Must(t, err)
	before := r.read(t)
	if !frozen || len(reading) > 0 {
		t.Fatalf("frozen: %v, in the middle of reading a clock: %v", frozen, reading)
	}
	pids, err := r.Procs()
	kerneltest.Must(t, err)
	for _, pid := range pids {
		if tracer, err := kernel.ThreadStatus(pid, "TracerPid"); err != nil || tracer != "0" {
			t.Fatalf("process %d is traced by %s, %v", pid, tracer, err)
		}
	}
	for i, n := range r.read(t) {
		if n != before[i] {
			t.Fatalf("thread %d runs on", i)
		}
	}
	kerneltest.Must(t, r.Thaw())
	r.goOn(t)
}
