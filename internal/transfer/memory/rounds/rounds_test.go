package rounds

import (
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/transfer/memory/precopy"
)

// shrinking is what a container writes whose rounds converge, and steady is that of one whose do not.
var (
	shrinking = []uint64{100e6, 10e6, 1e6, 1e4}
	steady    = []uint64{100e6, 50e6, 50e6, 50e6, 50e6}
)

// wanted are settings with a downtime of so much.
func wanted(converge migration.NoConvergence) migration.Settings {
	return migration.Settings{DowntimeTarget: 200 * time.Millisecond, OnNoConvergence: converge}
}

// TestRoundsConverge until the rest fits, and bring files in between.
func TestRoundsConverge(t *testing.T) {
	r := try(t, &container{script: shrinking}, wanted(migration.StopAndCopy), nil)
	files := 0
	err := r.Run(t.Context(), func(context.Context) error {
		files++
		return nil
	})
	if err != nil || !r.Fits() || r.of.rounds != 4 || files != 4 || r.Slowed() {
		t.Errorf("%v after %d rounds and %d of files, fits: %t", err, r.of.rounds, files, r.Fits())
	}
	r.told(t, "switchover after 4 rounds")
	if last, ok := r.LastBytes(); last != 1e4 || !ok {
		t.Errorf("the last round has sent %d bytes", last)
	}
	if err := r.CatchUp(t.Context()); err != nil || r.of.rounds != 5 {
		t.Errorf("caught up after %d rounds: %v", r.of.rounds, err)
	}
}

// TestCatchUpGoesOn as long as preparing took so long that the rest does not fit any more, to an end.
func TestCatchUpGoesOn(t *testing.T) {
	r := try(t, &container{script: append(slices.Clone(shrinking), 40e6, 20e6, 1e4)},
		wanted(migration.StopAndCopy), nil)
	if err := errors.Join(r.run(t), r.CatchUp(t.Context())); err != nil || r.of.rounds != 7 {
		t.Errorf("%v after %d rounds", err, r.of.rounds)
	}
	r = try(t, &container{script: append(slices.Clone(shrinking), 40e6, 30e6, 20e6, 15e6, 10e6, 7e6, 5e6)},
		wanted(migration.StopAndCopy), nil)
	// more rounds do not help
	if err := errors.Join(r.run(t), r.CatchUp(t.Context())); err != nil || r.of.rounds != 7 {
		t.Errorf("%v after %d rounds", err, r.of.rounds)
	}
}

// TestRoundsDoNotConverge: what comes then is what the user has chosen.
func TestRoundsDoNotConverge(t *testing.T) {
	for choice, c := range map[migration.NoConvergence]struct {
		leaves bool
		told   string
		err    error
	}{
		migration.StopAndCopy: {told: "stop-and-copy after"},
		migration.TurnHybrid:  {leaves: true, told: "handed over after"},
		migration.GiveUp:      {err: ErrNotConverging},
	} {
		r := try(t, &container{script: steady}, wanted(choice), nil)
		if err := r.run(t); !errors.Is(err, c.err) || r.Leaving() != c.leaves || r.Fits() {
			t.Errorf("%s: %v, leaves: %t", choice, err, r.Leaving())
		}
		if c.told != "" {
			r.told(t, c.told)
		}
	}
}

// TestThrottled: a container is slowed down more and more, and at last frozen; then it may use all again.
func TestThrottled(t *testing.T) {
	r := try(t, &container{script: steady, most: 200}, wanted(migration.Throttle), nil)
	if err := r.run(t); err != nil || !r.Slowed() || !slices.IsSortedFunc(r.of.cpus, func(a, b float64) int {
		return int(max(-1, min(1, 1e9*(b-a))))
	}) {
		t.Fatalf("%v, slowed down: %t, to %v", err, r.Slowed(), r.of.cpus)
	}
	if least := r.of.cpus[len(r.of.cpus)-1]; least > 1.01*predict.LeastThrottle {
		t.Errorf("slowed down to %v, to %v in the end", r.of.cpus, least)
	}
	r.told(t, "throttled to 0.01")
	r.told(t, "stop-and-copy after")
	r.of.fails = map[string]error{"Throttle": os.ErrDeadlineExceeded}
	if err := r.EndThrottle(t.Context()); !errors.Is(err, os.ErrDeadlineExceeded) || !r.Slowed() {
		t.Errorf("an engine that does not answer: %v", err)
	}
	r.of.fails = nil
	for range 2 {
		if err := r.EndThrottle(t.Context()); err != nil || r.Slowed() {
			t.Errorf("%v", err)
		}
	}
	if last := r.of.cpus[len(r.of.cpus)-1]; last != 0 {
		t.Errorf("in the freeze it may use %v processors", last)
	}
}

// TestCannotBeThrottled: an engine that cannot do that leads to a longer freeze, and one that fails ends the
// move.
func TestCannotBeThrottled(t *testing.T) {
	for _, method := range []string{"CPUTime", "Throttle"} {
		r := try(t, &container{script: steady, fails: map[string]error{method: errors.ErrUnsupported}},
			wanted(migration.Throttle), nil)
		if err := r.run(t); err != nil {
			t.Errorf("%s: %v", method, err)
		}
		r.told(t, "not throttled")
		r.told(t, "stop-and-copy")
		r = try(t, &container{script: steady, fails: map[string]error{method: os.ErrPermission}},
			wanted(migration.Throttle), nil)
		if err := r.run(t); !errors.Is(err, os.ErrPermission) {
			t.Errorf("%s: %v", method, err)
		}
	}
}

// forbidden makes a split that may not be.
func forbidden() *Split {
	s := NewSplit(migration.PostCopyAuto, migration.Settings{}, false, 0, 0)
	s.Forbid("nobody wants it")
	return s
}

// TestMemoryMustNotFollow: rounds that would turn into a hybrid then end as those of a pre-copy.
func TestMemoryMustNotFollow(t *testing.T) {
	for _, mode := range []migration.Mode{migration.PreCopy, migration.Hybrid, migration.PostCopy} {
		r := try(t, &container{script: steady}, wanted(migration.TurnHybrid), func(c *Config) {
			c.Split, c.Mode = forbidden(), mode
		})
		if err := r.run(t); err != nil || r.Leaving() || r.Fits() {
			t.Errorf("%s: %v, leaves: %t", mode, err, r.Leaving())
		}
		r.told(t, "stop-and-copy", "nobody wants it")
	}
	r := try(t, &container{script: shrinking}, wanted(migration.TurnHybrid), func(c *Config) {
		c.Split, c.Mode = forbidden(), migration.PostCopy
	})
	if err := r.run(t); err != nil || !r.Fits() {
		t.Errorf("rounds that converge: %v", err)
	}
	r.told(t, "rounds first", "nobody wants it")
}

// TestAllFollows in a post-copy, of which a round sends what cannot.
func TestAllFollows(t *testing.T) {
	r := try(t, &container{script: []uint64{1e6}}, wanted(migration.StopAndCopy), func(c *Config) {
		c.Mode = migration.PostCopy
	})
	if !r.Leaving() {
		t.Fatal("pages are sent in rounds")
	}
	if err := r.run(t); err != nil || r.Fits() {
		t.Errorf("%v, fits: %t", err, r.Fits())
	}
}

// TestTurned: a user ends the rounds in the middle of one.
func TestTurned(t *testing.T) {
	turn := &Turn{}
	if err := turn.Ask("too early"); !errors.Is(err, ErrNoRounds) {
		t.Errorf("there are no rounds: %v", err)
	}
	of := &container{script: steady}
	of.during = func(round int) {
		if round == 1 {
			if err := turn.Ask("a user requested it"); err != nil {
				t.Error(err)
			}
		}
	}
	turn.May(of)
	r := try(t, of, wanted(migration.StopAndCopy), func(c *Config) { c.Turn = turn })
	if err := r.run(t); err != nil || !r.Leaving() || of.rounds != 2 {
		t.Errorf("%v after %d rounds, leaves: %t", err, of.rounds, r.Leaving())
	}
	r.told(t, "handed over after 2 rounds", "a user requested it")
}

// TestRoundFails: an error of the processes, of files, of a fault or of the connection ends the rounds.
func TestRoundFails(t *testing.T) {
	gone := errors.New("no process")
	r := try(t, &container{script: steady, fails: map[string]error{"Round": gone}},
		wanted(migration.StopAndCopy), nil)
	if err := r.run(t); !errors.Is(err, gone) {
		t.Errorf("of the processes: %v", err)
	}
	r = try(t, &container{script: steady}, wanted(migration.StopAndCopy), nil)
	if err := r.Run(t.Context(), func(context.Context) error { return gone }); !errors.Is(err, gone) {
		t.Errorf("of files: %v", err)
	}
	var at []string
	r = try(t, &container{script: steady}, wanted(migration.StopAndCopy), func(c *Config) {
		c.Fault = func(_ context.Context, step, when string) error {
			at = append(at, step+" "+when)
			return gone
		}
	})
	if err := errors.Join(r.run(t), r.Last(t.Context())); !errors.Is(err, gone) ||
		!slices.Equal(at, []string{"page before", "last-page before"}) {
		t.Errorf("of a fault: %v, at %q", err, at)
	}
	of := &container{script: steady}
	r = try(t, of, wanted(migration.StopAndCopy), nil)
	of.during = func(round int) {
		if round == 1 {
			_ = r.link.Close()
		}
	}
	if err := r.run(t); err == nil || of.rounds > 2 {
		t.Errorf("of the connection: %v after %d rounds", err, of.rounds)
	}
}

// TestRoundsAhead while layers come decide nothing, and what they saw does not count.
func TestRoundsAhead(t *testing.T) {
	r := try(t, &container{script: append([]uint64{5e8, 5e8, 5e8, 5e8, 5e8}, shrinking...)},
		wanted(migration.StopAndCopy), nil)
	if _, ok := r.LastBytes(); ok {
		t.Error("a round that was not done has sent something")
	}
	for range 5 {
		if err := r.Round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	r.Ahead()
	if err := r.run(t); err != nil || !r.Fits() || r.of.rounds != 9 {
		t.Errorf("%v after %d rounds", err, r.of.rounds)
	}
}

// TestAutoEndsRounds: before more is sent than may be, or when the time is over, and it says what it chose.
func TestAutoEndsRounds(t *testing.T) {
	auto := func(demands predict.Demands) func(*Config) {
		return func(c *Config) { c.Auto = &Auto{Demands: demands, Began: time.Now()} }
	}
	r := try(t, &container{script: shrinking}, wanted(migration.StopAndCopy),
		auto(predict.Demands{MaxBytes: 101e6, NoPostCopy: true}))
	if err := r.run(t); err != nil || r.of.rounds != 1 {
		t.Errorf("%v after %d rounds", err, r.of.rounds)
	}
	r.told(t, "--no-post-copy rules that out")
	of := &container{script: steady}
	r = try(t, of, wanted(migration.StopAndCopy), func(c *Config) {
		auto(predict.Demands{Deadline: time.Nanosecond})(c)
		c.Turn.May(of)
	})
	of.during = func(int) {
		for r.config.Turn.Wanted() == "" {
			runtime.Gosched()
		}
	}
	if err := r.run(t); err != nil || !r.Leaving() || of.rounds != 1 {
		t.Errorf("the time is over: %v after %d rounds", err, of.rounds)
	}
	r.told(t, "must run at the target within 1ns")
}

// TestAutoMayFollow when that is clearly better, unless both nodes may not be needed.
func TestAutoMayFollow(t *testing.T) {
	for _, split := range []*Split{nil, forbidden()} {
		r := try(t, &container{script: steady}, wanted(migration.StopAndCopy), func(c *Config) {
			c.Auto, c.Split = &Auto{Began: time.Now()}, split
		})
		if err := r.run(t); err != nil || r.Leaving() != (split == nil) {
			t.Errorf("%v, leaves: %t", err, r.Leaving())
		}
		if split == nil {
			r.told(t, "auto: the rest of the memory is sent after the handover")
		} else {
			r.told(t, "auto: clients are expected to wait", "nobody wants it")
		}
	}
}

// TestForesee refuses memory that would not fit, and only that.
func TestForesee(t *testing.T) {
	of := &container{use: memory.Use{Whole: 300 << 20, Parts: 100 << 20, Shared: 10 << 20}}
	r := try(t, of, wanted(migration.StopAndCopy), nil)
	for limit, want := range map[int64]string{
		0: "", 400 << 20: "", 305 << 20: "310 MiB, and the limit is 305 MiB",
	} {
		why, err := r.Foresee(limit)
		if err != nil || !strings.Contains(why, want) || (why == "") != (want == "") {
			t.Errorf("%d: %q, %v", limit, why, err)
		}
	}
	of.fails = map[string]error{"Use": os.ErrNotExist}
	if _, err := r.Foresee(0); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// TestSharedMemory is carried here if the dump can leave it out.
func TestSharedMemory(t *testing.T) {
	for what, c := range map[string]struct {
		shared []uint64
		left   bool
		err    error
		given  bool
	}{
		"none": {}, "left out": {shared: []uint64{1}, left: true},
		"dumped": {shared: []uint64{1}, given: true}, "failed": {shared: []uint64{1}, err: os.ErrInvalid},
	} {
		of := &container{shared: c.shared}
		r := try(t, of, wanted(migration.StopAndCopy), nil)
		err := r.LeaveShared(func([]uint64) (bool, error) { return c.left, c.err })
		if !errors.Is(err, c.err) || (of.given != "") != c.given {
			t.Errorf("%s: %v, given: %q", what, err, of.given)
		}
	}
}

// written is what CRIU has written.
type written struct {
	touched      []memory.RemoteFault
	left, failed error
}

func (w written) LeftOut() (memory.Left, error) { return memory.Left{}, w.left }

func (w written) Touched() ([]memory.RemoteFault, error) { return w.touched, w.failed }

// TestFinish: the target has all that there must be, and knows what comes later.
func TestFinish(t *testing.T) {
	later := []memory.TaskMap{{Task: testTask + 1, Areas: []memory.Area{{Start: testStart, Pages: 4}}}}
	touched := make([]memory.RemoteFault, 1000)
	of := &container{script: steady, left: later}
	r := try(t, of, wanted(migration.TurnHybrid), nil)
	if err := errors.Join(r.run(t), r.Last(t.Context()),
		r.Finish(t.Context(), written{touched: touched}, r.out), r.out.Flush(), <-r.arrived); err != nil {
		t.Fatal(err)
	}
	if n := len(of.early); n < leastTouched || n == len(touched) {
		t.Errorf("%d pages leave in the freeze because they are touched", n)
	}
	remote, hot := r.Remote()
	soon, err := r.Soon(5)
	if len(remote) != 1 || len(hot) != 1 || len(soon) != 5 || err != nil {
		t.Errorf("%d areas follow, %d hot, %d soon, %v", len(remote), len(hot), len(soon), err)
	}
	there, err := r.store.ReadPage(testTask, testStart, make([]byte, memory.PageSize()))
	if err != nil || !there {
		t.Errorf("the page is not there: %v", err)
	}
	if err := r.Close(); err != nil || !of.closed {
		t.Error("it is still tracked")
	}
}

// TestFinishWithoutTouched: that it is not known which pages are touched first is no error.
func TestFinishWithoutTouched(t *testing.T) {
	r := try(t, &container{script: steady}, wanted(migration.TurnHybrid), nil)
	var out sections
	err := errors.Join(r.run(t), r.Finish(t.Context(), written{failed: os.ErrNotExist}, &out))
	if err != nil || !slices.Equal(out.kinds, []string{precopy.KindRemote, precopy.KindMap}) {
		t.Errorf("%v, sections %q", err, out.kinds)
	}
	r = try(t, &container{script: shrinking}, wanted(migration.StopAndCopy), nil)
	out = sections{}
	err = errors.Join(r.run(t), r.Finish(t.Context(), written{failed: os.ErrNotExist}, &out))
	if err != nil || !slices.Equal(out.kinds, []string{precopy.KindMap}) {
		t.Errorf("of nothing that follows: %v, sections %q", err, out.kinds)
	}
}

// TestFinishFails at each thing that can.
func TestFinishFails(t *testing.T) {
	for _, method := range []string{
		"Final", "Complete", "SendRemote", "Remote", "Map", "LeftOut", "section", "link",
	} {
		of, dump, out := &container{script: steady}, written{}, &sections{}
		r := try(t, of, wanted(migration.TurnHybrid), nil)
		if err := r.run(t); err != nil {
			t.Fatal(err)
		}
		broken := os.ErrClosed
		switch method {
		case "LeftOut":
			dump.left = broken
		case "section":
			out.fails = broken
		case "link":
			r.config.Sender.Close(broken)
		default:
			of.fails = map[string]error{method: broken}
		}
		if err := r.Finish(t.Context(), dump, out); !errors.Is(err, broken) {
			t.Errorf("%s: %v", method, err)
		}
		if slices.Contains(out.kinds, precopy.KindMap) && method != "section" {
			t.Errorf("%s: the map was sent nevertheless", method)
		}
	}
}
