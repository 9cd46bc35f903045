package oci

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/engine/moving"
)

func TestGoesOn(t *testing.T) {
	unknown := errors.New("no answer")
	for _, one := range []struct {
		frozen  bool
		unknown error
		alive   bool
		want    bool
	}{
		{false, nil, true, true}, {true, nil, true, false}, {false, unknown, true, false}, {false, unknown, false, true}, {true, nil, false, true},
	} {
		if got := goesOn(one.frozen, one.unknown, one.alive); got != one.want {
			t.Errorf("%+v", one)
		}
	}
}

// TestWaits: nothing is restored for a start that the engine has given up.
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

// TestThawEmpty: a group whose processes have been ended is not left frozen, whether the container stays or goes; one that is gone
// hinders nothing.
func TestThawEmpty(t *testing.T) {
	e, id, group := awayEngine(t), strings.Repeat("a", 64), t.TempDir()
	frozen := filepath.Join(group, "cgroup.freeze")
	gone := departureRecord{First: moving.Identity{PID: 1 << 22, StartTicks: 1}, Freezer: group}
	must(t, save(e.departurePath(id), gone))
	for what, thaw := range map[string]func() error{
		"stays": func() error { return gone.thaw(t.Context()) },
		"goes":  func() error { return e.kill(t.Context(), id) },
	} {
		must(t, os.WriteFile(frozen, []byte("1"), 0o600))
		must(t, thaw())
		if now, err := os.ReadFile(frozen); err != nil || string(now) != "0" {
			t.Errorf("%s: %s, %v", what, now, err)
		}
	}
	must(t, os.RemoveAll(group))
	must(t, gone.thaw(t.Context()))
	must(t, departureRecord{}.thaw(t.Context()))
}
