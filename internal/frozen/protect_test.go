package frozen

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// TestAwaitHeld: the target gets what it needs to run a container only if the copy here is known to have been
// frozen all the time. That nobody can hold the copy does not matter for that.
func TestAwaitHeld(t *testing.T) {
	for name, c := range map[string]struct {
		protect func(ctx context.Context) error
		fails   string // with this; "": it does not
	}{
		"held": {func(context.Context) error { return nil }, ""},
		"thawed": {
			func(context.Context) error { return fmt.Errorf("x: %w", engine.ErrThawed) },
			"thawed the frozen copy",
		},
		"exposed": {
			func(context.Context) error { return fmt.Errorf("x: %w: no keeper", engine.ErrExposed) }, "",
		},
		"unknown": {func(context.Context) error { return errors.New("no such group") }, "no such group"},
		"a panic": {func(context.Context) error { panic("nil") }, "keep web frozen"},
	} {
		t.Run(name, func(t *testing.T) {
			c, fails := keptBy(t, c.protect), c.fails
			c.Keep()
			err := c.AwaitHeld(t.Context())
			if (err != nil) != (fails != "") || err != nil && !strings.Contains(err.Error(), fails) {
				t.Errorf("%v; want %q", err, fails)
			}
		})
	}
}

// TestRanUnheld: a copy that nothing holds is looked at once more before the target may run it.
func TestRanUnheld(t *testing.T) {
	var looks atomic.Int32
	c := keptBy(t, func(context.Context) error {
		if looks.Add(1) == 1 {
			return fmt.Errorf("%w: no keeper", engine.ErrExposed)
		}
		return engine.ErrThawed
	})
	c.WithholdFinal()
	c.Keep()
	if err := c.AwaitHeld(t.Context()); err != nil {
		t.Error(err)
	}
	<-c.keeping.over
	if err := c.ReleaseFinal(t.Context()); !errors.Is(err, engine.ErrThawed) || c.FinalReleased() {
		t.Errorf("the final marker of a copy that has been thawed left: %v", err)
	}
	if !c.DenyFinal() {
		t.Error("the final marker that was kept here may have left")
	}
	held := keptBy(t, func(context.Context) error { return nil })
	held.WithholdFinal()
	held.Keep()
	<-held.keeping.over
	if err := held.ReleaseFinal(t.Context()); err != nil || !held.FinalReleased() {
		t.Errorf("the final marker of a copy that is held: %v", err)
	}
}

// TestReleaseWhileOOMKillersAreTold: a copy that is held is not asked about again before the final marker
// leaves.
func TestReleaseWhileOOMKillersAreTold(t *testing.T) {
	var looks atomic.Int32
	told := make(chan struct{})
	c := copyOf(t, protecting{&testEngine{
		protect: func(_ context.Context, _ func([]int) error, held func()) error {
			looks.Add(1)
			held()
			<-told
			return nil
		},
	}})
	c.WithholdFinal()
	c.Keep()
	if err := errors.Join(c.AwaitHeld(t.Context()), c.ReleaseFinal(t.Context())); err != nil {
		t.Error(err)
	}
	close(told)
	<-c.keeping.over
	if n := looks.Load(); n != 1 {
		t.Errorf("the engine was asked %d times", n)
	}
}

// TestReleaseDenied: a marker that was denied never leaves, whatever becomes of the copy.
func TestReleaseDenied(t *testing.T) {
	c := keptBy(t, func(context.Context) error { return nil })
	c.WithholdFinal()
	if !c.DenyFinal() {
		t.Fatal("the marker may have left")
	}
	if err := c.ReleaseFinal(t.Context()); !errors.Is(err, engine.ErrThawed) || c.FinalReleased() {
		t.Errorf("it left: %v", err)
	}
}

// TestAwaitHeldEnds: a copy that does not freeze keeps neither the step nor its undo waiting.
func TestAwaitHeldEnds(t *testing.T) {
	waits := func(ctx context.Context) error {
		if _, bounded := ctx.Deadline(); !bounded {
			return errors.New("nothing bounds it")
		}
		<-ctx.Done()
		return ctx.Err()
	}
	c := keptBy(t, waits)
	c.Keep()
	step, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.AwaitHeld(step); !errors.Is(err, context.Canceled) {
		t.Errorf("the step was canceled: %v", err)
	}
	c.Keep()
	c.EndKeeping()
	if err := c.AwaitHeld(t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("it was undone: %v", err)
	}
}

// TestNothingToKeep: nothing is waited for that has not begun, or that an engine cannot protect.
func TestNothingToKeep(t *testing.T) {
	c := copyOf(t, &testEngine{})
	c.EndKeeping()
	c.EndKeeper()
	c.WithholdFinal()
	if err := errors.Join(c.AwaitHeld(t.Context()), c.ReleaseFinal(t.Context())); err != nil {
		t.Errorf("before it is kept: %v", err)
	}
	c.Keep()
	if err := c.AwaitHeld(t.Context()); err != nil {
		t.Errorf("by an engine that protects nothing: %v", err)
	}
	if c.KeepAgain(t.Context()); c.HasRun() != nil {
		t.Error("it has run")
	}
}

// TestKeepers: the keeper that was started ahead holds the processes; if it cannot, a new one does, and is
// let go of when it holds them.
func TestKeepers(t *testing.T) {
	hold := func(_ context.Context, hold func([]int) error, held func()) error {
		if err := hold([]int{7, 8}); err != nil {
			return fmt.Errorf("%w: %w", engine.ErrExposed, err)
		}
		held()
		return nil
	}
	errGone := errors.New("the keeper is gone")
	for name, c := range map[string]struct {
		next      []error
		keepers   int
		unkept    int
		holds     int // the number of the keeper that holds them; -1: none
		notStarts bool
	}{
		"the first holds": {nil, 1, 0, 0, false},
		"another holds":   {[]error{errGone}, 2, 0, 1, false},
		"none holds":      {[]error{errGone, errGone}, 2, 1, -1, false},
		"none starts":     {nil, 0, 2, -1, true}, // told at the start, and when it would be of use
	} {
		t.Run(name, func(t *testing.T) {
			one := copyOf(t, protecting{&testEngine{protect: hold}})
			if one.next = c.next; c.notStarts {
				one.none = errGone
			}
			one.StartKeeper()
			one.Keep()
			if err := one.AwaitHeld(t.Context()); err != nil {
				t.Error(err)
			}
			<-one.keeping.over
			one.EndKeeper()
			one.EndKeeper()
			if len(one.keepers) != c.keepers || one.log.count("is not protected") != c.unkept {
				t.Errorf("%d keepers, %d warnings", len(one.keepers), one.log.count("is not protected"))
			}
			for i, k := range one.keepers {
				if k.closed != 1 || slices.Equal(k.holds, []int{7, 8}) != (i == c.holds) {
					t.Errorf("keeper %d: %+v", i, k)
				}
			}
		})
	}
}

// TestStartKeeperAgain: a step that is repeated leaves one keeper.
func TestStartKeeperAgain(t *testing.T) {
	one := copyOf(t, &testEngine{})
	one.StartKeeper()
	one.StartKeeper()
	if len(one.keepers) != 2 || one.keepers[0].closed != 1 || one.keepers[1].closed != 0 {
		t.Errorf("%+v", one.keepers)
	}
}

// TestKeepInDoubt: only a frozen copy in doubt is protected again.
func TestKeepInDoubt(t *testing.T) {
	looks := 0
	c := keptBy(t, func(context.Context) error {
		looks++
		return nil
	})
	if c.KeepInDoubt(t.Context()); looks != 0 {
		t.Error("a copy that is not in doubt was protected")
	}
	c.move.record.State = migration.InDoubt
	if c.KeepInDoubt(t.Context()); looks != 1 {
		t.Error("a copy in doubt was not protected")
	}
	c.config.Restarts = true
	if c.KeepInDoubt(t.Context()); looks != 1 {
		t.Error("a container that was stopped was protected")
	}
}

// TestThawedInDoubt: a copy that has run is told once if the target may run the container, too; otherwise the
// target never gets the final marker.
func TestThawedInDoubt(t *testing.T) {
	const alarm = "two copies of a container may have run"
	thawed := func(context.Context) error { return engine.ErrThawed }
	left := keptBy(t, thawed)
	left.KeepAgain(t.Context())
	left.KeepAgain(t.Context())
	n := left.log.count(alarm)
	if n != 1 || left.Alarm() == "" || !errors.Is(left.HasRun(), engine.ErrThawed) {
		t.Errorf("the marker may have left: %d alarms, %q, %v", n, left.Alarm(), left.HasRun())
	}
	withheld := keptBy(t, thawed)
	withheld.WithholdFinal()
	withheld.KeepAgain(t.Context())
	if withheld.log.count(alarm) != 0 || withheld.Alarm() != "" || withheld.HasRun() != nil {
		t.Error("an alarm although the target never runs the container")
	}
	if err := withheld.ReleaseFinal(t.Context()); err == nil {
		t.Error("the marker leaves afterwards")
	}
	rebuilt := keptBy(t, thawed)
	rebuilt.move.record.Rebuilt = true
	rebuilt.KeepAgain(t.Context())
	if rebuilt.log.count(alarm) != 0 || rebuilt.HasRun() == nil {
		t.Error("a copy without a journal may not have been frozen")
	}
}

// TestUnkeptInDoubt: that a copy is not protected is told once, and not when the caller has given up.
func TestUnkeptInDoubt(t *testing.T) {
	c := keptBy(t, func(context.Context) error { return engine.ErrExposed })
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	c.KeepAgain(gone)
	if c.log.count("is not protected") != 0 {
		t.Error("told although nobody waits")
	}
	c.KeepAgain(t.Context())
	c.KeepAgain(t.Context())
	if n := c.log.count("is not protected"); n != 1 {
		t.Errorf("told %d times", n)
	}
}

// TestSendFinal: the marker leaves after all else, and not at all if anything fails before.
func TestSendFinal(t *testing.T) {
	for _, fails := range []string{"", "content", "permission", "hold", "marker"} {
		c := keptBy(t, func(context.Context) error {
			if fails == "hold" {
				return engine.ErrThawed
			}
			return nil
		})
		c.Keep()
		failed := errors.New(fails + " fails")
		does := func(what string) error {
			if what == fails {
				return failed
			}
			return nil
		}
		emitted, sent := false, false
		err := c.SendFinal(t.Context(), Sending{
			Content: func(context.Context) error {
				sent = true
				return does("content")
			},
			Permit: func(context.Context) error { return does("permission") },
			Emit: func() error {
				emitted = sent
				return does("marker")
			},
		})
		if may := fails == "" || fails == "marker"; (err == nil) != (fails == "") || emitted != may ||
			c.FinalReleased() != may {
			t.Errorf("%q fails: %v, sent: %t", fails, err, emitted)
		}
		if fails != "" && fails != "hold" && !errors.Is(err, failed) {
			t.Errorf("%q fails: %v", fails, err)
		}
	}
}
