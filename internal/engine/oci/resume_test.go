package oci

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

func TestGoesOn(t *testing.T) {
	unknown := errors.New("no answer")
	for _, one := range []struct {
		frozen  bool
		unknown error
		alive   bool
		want    bool
	}{
		{false, nil, true, true}, {true, nil, true, false}, {false, unknown, true, false},
		{false, unknown, false, true}, {true, nil, false, true},
	} {
		if got := goesOn(one.frozen, one.unknown, one.alive); got != one.want {
			t.Errorf("%+v", one)
		}
	}
}

// TestWaits checks that nothing is restored for a start that the engine has given up.
func TestWaits(t *testing.T) {
	a := &arrival{started: make(chan struct{})}
	if err := a.waits(); err != nil {
		t.Error(err)
	}
	a.startErr = errors.New("EOF")
	close(a.started)
	if err := a.waits(); !errors.Is(err, a.startErr) {
		t.Error(err)
	}
}

// TestResumeEmpty checks that a group whose processes were ended is not left frozen, whether the container
// stays or goes, and that a missing group is no error.
func TestResumeEmpty(t *testing.T) {
	e, id, group := awayEngine(t), strings.Repeat("a", 64), t.TempDir()
	frozen := filepath.Join(group, "cgroup.freeze")
	gone := departureRecord{First: checkpoint.Identity{PID: 1 << 22, StartTicks: 1}, Freezer: group}
	must(t, save(e.records.departurePath(id), gone))
	for what, thaw := range map[string]func() error{
		"stays": func() error { return gone.resume(t.Context()) },
		"goes":  func() error { return e.remains.kill(t.Context(), id) },
	} {
		must(t, os.WriteFile(frozen, []byte("1"), 0o600))
		must(t, thaw())
		if now, err := os.ReadFile(frozen); err != nil || string(now) != "0" {
			t.Errorf("%s: %s, %v", what, now, err)
		}
	}
	must(t, os.RemoveAll(group))
	must(t, gone.resume(t.Context()))
	must(t, departureRecord{}.resume(t.Context()))
}

// TestResumeOnFullDisk checks that a container continues although this cannot be recorded.
func TestResumeOnFullDisk(t *testing.T) {
	e, id, group := awayEngine(t), strings.Repeat("a", 64), t.TempDir()
	must(t, os.MkdirAll(e.records.dir(id), 0o700))
	must(t, unix.Mount("tmpfs", e.records.dir(id), "tmpfs", 0, "size=4k"))
	t.Cleanup(func() { must(t, unix.Unmount(e.records.dir(id), unix.MNT_DETACH)) })
	was := departureRecord{First: checkpoint.Identity{PID: 1 << 22, StartTicks: 1}, Freezer: group}
	must(t, save(e.records.departurePath(id), was)) // for which there is still room
	if err := save(e.records.departurePath(id), was); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	frozen := filepath.Join(group, "cgroup.freeze")
	must(t, os.WriteFile(frozen, []byte("1"), 0o600))
	must(t, e.ResumeProcesses(t.Context(), id))
	if now, err := os.ReadFile(frozen); err != nil || string(now) != "0" {
		t.Errorf("it is frozen: %s, %v", now, err)
	}
}

// TestClosedWhilePaused checks that a departure gives a container that stays back to its engine even if
// somebody has paused it. Only a container that the departure itself has frozen and not resumed is not
// given back.
func TestClosedWhilePaused(t *testing.T) {
	e, id, dir := awayEngine(t), strings.Repeat("a", 64), t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "cgroup.freeze"), []byte("1"), 0o600))
	group, err := cgroup.At(dir)
	must(t, err)
	self, err := checkpoint.Identify(os.Getpid())
	must(t, err)
	for _, one := range []struct{ froze, resumed, given bool }{
		{true, false, false}, {true, true, true}, {false, false, true},
	} {
		must(t, save(e.records.departurePath(id), departureRecord{First: self, Resumed: one.resumed}))
		if err := e.closed(id, group, self, one.froze); errors.Is(err, engine.ErrAway) != one.given ||
			!one.given && err != nil {
			t.Errorf("%+v: %v", one, err)
		}
	}
	must(t, e.records.forget(id))
	if err := e.closed(id, group, self, true); err != nil {
		t.Errorf("nothing departs: %v", err)
	}
}

// alone is an adapter that counts overlapping calls.
type alone struct {
	away
	asking, together atomic.Int32
}

func (a *alone) Away() error {
	if a.asking.Add(1) > 1 {
		a.together.Add(1)
	}
	for range 1000 {
		runtime.Gosched()
	}
	a.asking.Add(-1)
	return engine.ErrAway
}

// TestClosedAlone checks that nobody else changes a container while its departure gives it back.
func TestClosedAlone(t *testing.T) {
	adapter := &alone{}
	e, err := New(Config{StateDir: t.TempDir(), RunDir: t.TempDir(), Executable: "/bin/true"}, adapter)
	must(t, err)
	id, dir := strings.Repeat("a", 64), t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "cgroup.freeze"), []byte("0"), 0o600))
	group, err := cgroup.At(dir)
	must(t, err)
	gone := checkpoint.Identity{PID: 1 << 22, StartTicks: 1}
	must(t, save(e.records.departurePath(id), departureRecord{First: gone}))
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { _ = e.closed(id, group, gone, true) })
		all.Go(func() { _ = e.Resume(t.Context(), id) })
	}
	all.Wait()
	if count := adapter.together.Load(); count != 0 {
		t.Errorf("%d questions beside another one", count)
	}
}

// TestHeldContainerDelaysNobodyForEver checks that a caller can give up waiting for another change of a
// container, which may be waiting for an engine that hangs.
func TestHeldContainerDelaysNobodyForEver(t *testing.T) {
	e, id := awayEngine(t), strings.Repeat("a", 64)
	defer e.lock(id)()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, departs := e.PrepareDump(ctx, id, engine.DumpOptions{})
	for what, err := range map[string]error{
		"PrepareDump": departs, "Destroy": e.Destroy(ctx, id, nil),
		"Protect": e.Protect(ctx, id, nil, nil), "Remove": e.Remove(ctx, id, true),
		"ResumeProcesses": e.ResumeProcesses(ctx, id),
		"Stop":            e.Stop(ctx, id, 0), "Resume": e.Resume(ctx, id),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
