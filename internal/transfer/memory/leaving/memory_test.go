package leaving

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/postcopy"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/staging"
	"github.com/godwit/godwit/internal/transfer/memory/precopy"
	"github.com/godwit/godwit/internal/transfer/memory/rounds"
	"github.com/godwit/godwit/internal/wire/stream"
)

// decided reports whether a decision has these words.
func (r *trial) decided(words string) bool {
	report := r.figures.Report(migration.Record{Spec: r.figures.Spec}, false)
	return slices.ContainsFunc(report.Decisions,
		func(one string) bool { return strings.Contains(one, words) })
}

// TestMemoryMoves: all pages are at the target as they were last, and nothing of the tracking is left.
func TestMemoryMoves(t *testing.T) {
	r := try(t, migration.PreCopy, nil)
	r.moves()
	if err := r.whole(); err != nil {
		t.Error(err)
	}
	if last, ok := r.LastBytes(); !ok || !r.Ahead() {
		t.Errorf("the last round has sent %d bytes", last)
	}
	if r.config.Link.Sent().Sent[precopy.KindPages].WireBytes == 0 {
		t.Error("no page was counted")
	}
	if err := r.Push(soon(t)); err != nil {
		t.Errorf("nothing is left to push: %v", err)
	}
	if err := r.Untrack(t.Context()); err != nil || r.tracked.closed != 1 || r.Ahead() {
		t.Errorf("%v, closed %d times", err, r.tracked.closed)
	}
}

// TestPushCannotConnect: if pages are to follow, and the connections for them cannot be made, the move ends
// before the freeze. Over a pipe, which cannot be paced, one of them never can.
func TestPushCannotConnect(t *testing.T) {
	r := try(t, migration.PostCopy, nil)
	if err := r.move(soon(t)); err == nil ||
		!strings.Contains(err.Error(), "for the pages that stayed here") {
		t.Errorf("%v", err)
	}
	if !r.tracked.leaving || r.Healthy(time.Hour) {
		t.Error("nothing was to follow")
	}
	if err := errors.Join(r.EndPush(), r.Untrack(t.Context())); err != nil {
		t.Error(err)
	}
}

// TestConnectionBreaks: wherever the first connection breaks, both ends notice, and nobody waits.
func TestConnectionBreaks(t *testing.T) {
	whole := try(t, migration.PreCopy, nil)
	whole.breaks = never
	whole.moves()
	sent := never - whole.conns[0].left
	for left := 0; left < sent; left += max(1, sent/40) {
		r := try(t, migration.PreCopy, nil)
		r.breaks = left
		moved := r.move(soon(t))
		r.cut()
		if moved == nil {
			select { // the source cannot know what of its last bytes has arrived
			case err := <-r.arrived:
				moved = err
			case <-soon(t).Done():
				t.Fatal("the target waits")
			}
		}
		if moved == nil {
			moved = r.whole()
			if moved != nil {
				t.Errorf("after %d of %d bytes the memory is said to be at the target: %v", left, sent, moved)
			}
		}
		r.end()
	}
}

// TestRoundsFail: a container that is gone ends the move.
func TestRoundsFail(t *testing.T) {
	r := try(t, migration.PreCopy, nil)
	r.tracked.fails = errors.New("it is gone")
	if err := r.move(soon(t)); !errors.Is(err, r.tracked.fails) {
		t.Errorf("%v", err)
	}
	if err := r.Untrack(t.Context()); err != nil || r.tracked.closed != 1 {
		t.Errorf("%v", err)
	}
}

// TestNothingAhead: if all memory is in the execution state, there is nothing to do with it.
func TestNothingAhead(t *testing.T) {
	r := try(t, migration.Cold, nil)
	r.StopAhead()
	ctx := t.Context()
	fails := func([]uint64) (bool, error) { return false, errors.New("it is asked") }
	err := errors.Join(r.TakeStaged(ctx), r.Quiesced(ctx, time.Hour), r.Frozen(ctx), r.LeaveShared(fails),
		r.Last(ctx), r.Finish(ctx, nil), r.HandOver(ctx), r.DropStaged(), r.Untrack(ctx), r.EndPush())
	if err != nil || r.Ahead() || len(r.conns) > 0 {
		t.Errorf("%v", err)
	}
	if _, ok := r.LastBytes(); ok {
		t.Error("a round was done")
	}
	r.ClosePages(errors.New("nobody has begun"))
	if err := r.Hear(stream.Section{Kind: precopy.KindPlaced}); err == nil {
		t.Error("the target has pages")
	}
}

// TestForesee refuses memory that is more at the target than the limit there.
func TestForesee(t *testing.T) {
	r := try(t, migration.PreCopy, func(c *Config) { c.Container.Limit = 150 })
	var refused *migration.Refusal
	if err := r.move(soon(t)); !errors.As(err, &refused) {
		t.Errorf("%v", err)
	}
}

// TestRoundAhead: what comes beside layers is not what rounds are judged by.
func TestRoundAhead(t *testing.T) {
	r := try(t, migration.PreCopy, nil)
	if err := errors.Join(r.open(), r.RoundAhead(soon(t)), r.RoundAhead(soon(t))); err != nil {
		t.Fatal(err)
	}
	r.StopAhead()
	if !r.Ahead() || r.tracked.rounds != 2 {
		t.Errorf("%d rounds", r.tracked.rounds)
	}
}

// TestTurn: a user ends rounds only as long as there are some.
func TestTurn(t *testing.T) {
	r := try(t, migration.PreCopy, func(c *Config) {
		c.Split = rounds.NewSplit(migration.PostCopyAuto, migration.Settings{}, false, 0, 0)
	})
	if err := r.Turn().Ask("a user requested it"); !errors.Is(err, rounds.ErrNoRounds) {
		t.Errorf("%v", err)
	}
	if err := errors.Join(r.open(), r.RoundAhead(soon(t)), r.Turn().Ask("a user requested it")); err != nil {
		t.Error(err)
	}
	if !r.tracked.leaving || r.Split().Request() != "" {
		t.Error("the rest does not follow")
	}
}

// TestOtherStaged: a copy that was staged elsewhere, or of no use in the mode, is ended: there is one
// tracker.
func TestOtherStaged(t *testing.T) {
	for _, mode := range []migration.Mode{migration.PreCopy, migration.Cold} {
		r := try(t, mode, nil)
		r.stages.copy = &staging.Stage{}
		if err := r.TakeStaged(t.Context()); err != nil || r.stages.dropped == nil {
			t.Errorf("%s: %v, dropped because of %v", mode, err, r.stages.dropped)
		}
	}
}

// TestUntrackAway: an undo waits for an engine that is away only if the container may be slowed down.
func TestUntrackAway(t *testing.T) {
	for name, c := range map[string]struct {
		begin func(*trial)
		waits bool
	}{
		"nothing was begun": {begin: func(*trial) {}},
		"rounds": {begin: func(r *trial) {
			r.rounds = rounds.New(rounds.Config{Pages: &memory.Source{}})
		}},
		"after a crash": {begin: func(r *trial) { r.MaySlow() }, waits: true},
	} {
		r := try(t, migration.PreCopy, nil)
		c.begin(r)
		r.engine.away = errors.New("cannot connect")
		if err := r.Untrack(t.Context()); (err != nil) != c.waits {
			t.Errorf("%s: %v", name, err)
		}
		r.engine.away = nil
		for range 2 { // the second finds nothing to do
			if err := r.Untrack(t.Context()); err != nil {
				t.Errorf("%s, again: %v", name, err)
			}
		}
		if want := map[bool]int{true: 1}[c.waits]; r.engine.ended != want {
			t.Errorf("%s: ended %d times, want %d", name, r.engine.ended, want)
		}
	}
}

// restless are pages of which every round finds as many, and a target that has them at once.
type restless struct {
	tracked
	target *precopy.Sender
	done   uint64
}

func (p *restless) Round(context.Context, memory.Sink) (memory.RoundStats, error) {
	p.done++
	placed := stream.Section{Name: strconv.FormatUint(p.done, 10), Reader: strings.NewReader("")}
	return memory.RoundStats{Pages: 1000, Interval: time.Second}, p.target.HearPlaced(placed)
}

// PageBytes implements rounds.Link.
func (p *restless) PageBytes() uint64 { return p.done * 1e6 }

// BytesPerSecond implements rounds.Link.
func (*restless) BytesPerSecond() float64 { return 1e6 }

// nowhere is a lane that takes everything.
type nowhere struct{}

func (nowhere) Send([]byte) error { return nil }
func (nowhere) Push() error       { return nil }

// TestUntrackThrottled: an engine that did not answer may have slowed the container down all the same.
func TestUntrackThrottled(t *testing.T) {
	r := try(t, migration.PreCopy, nil)
	r.user.Set(migration.Settings{DowntimeTarget: time.Millisecond, OnNoConvergence: migration.Throttle})
	sender, err := precopy.NewSender(func(int64) {})
	if err == nil {
		err = sender.AddLane(nowhere{})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sender.Close(errors.New("the test is over")) })
	pages := &restless{target: sender}
	r.rounds = rounds.New(rounds.Config{
		Pages: pages, Sender: sender, Settings: r.user, Figures: r.figures, Link: pages,
		Processor: processor{r.Memory}, Files: func() time.Duration { return 0 }, Turn: r.Turn(),
		Mode: migration.PreCopy, Log: r.config.Log,
	})
	r.engine.away = errors.New("cannot connect")
	if err := r.Run(soon(t), func(context.Context) error { return nil }); !errors.Is(err, r.engine.away) {
		t.Fatalf("%v", err)
	}
	if err := r.Untrack(t.Context()); !errors.Is(err, r.engine.away) || pages.closed != 1 {
		t.Errorf("it does not wait: %v", err)
	}
	r.engine.away = nil
	for range 2 { // the second finds nothing to do
		if err := r.Untrack(t.Context()); err != nil || r.engine.ended != 1 {
			t.Errorf("%v, ended %d times", err, r.engine.ended)
		}
	}
}

// spills is a target that answers a key.
type spills struct {
	api.PeerClient
	key []byte
	err error
}

func (s spills) Spill(context.Context, *api.SpillRequest, ...grpc.CallOption) (*api.SpillReply, error) {
	return &api.SpillReply{Key: s.key}, s.err
}

// TestExchangeKey: a target that knows no keys has lost them, and one that cannot be asked is asked again.
func TestExchangeKey(t *testing.T) {
	var peer spills
	r := try(t, migration.PostCopy, func(c *Config) {
		c.After.Ask = func(ctx context.Context, call func(context.Context, api.PeerClient) error) error {
			return call(ctx, peer)
		}
	})
	peer.key = make([]byte, len(postcopy.SpillKey{}))
	if _, known, err := r.exchangeKey(t.Context(), nil); err != nil || !known {
		t.Errorf("known %t, %v", known, err)
	}
	peer.key = nil
	if _, known, err := r.exchangeKey(t.Context(), nil); err != nil || known {
		t.Errorf("no key is known: %t, %v", known, err)
	}
	peer.err = status.Error(codes.Unimplemented, "an older version")
	if _, known, err := r.exchangeKey(t.Context(), nil); err != nil || known {
		t.Errorf("an older version: %t, %v", known, err)
	}
	peer.err = status.Error(codes.Unavailable, "away")
	if _, _, err := r.exchangeKey(t.Context(), nil); err == nil ||
		!strings.Contains(err.Error(), "key of the pages on the disk: b") {
		t.Errorf("a target that is away: %v", err)
	}
}

// TestExamineKey refuses a target that keeps no keys if one is needed.
func TestExamineKey(t *testing.T) {
	r := try(t, migration.PostCopy, nil)
	r.terms.reservation = nil
	if err := r.ExamineKey(); err != nil {
		t.Errorf("none is needed: %v", err)
	}
	r.user.Set(migration.Settings{Spill: true})
	var refused *migration.Refusal
	if err := r.ExamineKey(); !errors.As(err, &refused) {
		t.Errorf("%v", err)
	}
}

// TestKeepResidual: a residual copy is made only if somebody wants one, and without one the move goes on.
func TestKeepResidual(t *testing.T) {
	r := try(t, migration.PreCopy, nil)
	r.KeepResidual(t.Context())
	r.user.Set(migration.Settings{KeepResidual: time.Hour})
	offer := r.terms.offer
	r.terms.offer = nil
	r.KeepResidual(t.Context())
	if r.decided("residual memory copy") {
		t.Error("something was read")
	}
	r.terms.offer, r.engine.away = offer, errors.New("cannot connect")
	r.KeepResidual(t.Context())
	if !r.decided("no residual memory copy was kept") {
		t.Error("what could not be read was kept")
	}
	if err := r.Unmount(); err != nil {
		t.Error(err)
	}
}

// TestResidualClaims: the source waits for what the target has of a container that was there.
func TestResidualClaims(t *testing.T) {
	r := try(t, migration.PreCopy, nil)
	r.terms.reservation.Footprint = true
	if err := r.open(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancelCause(soon(t))
	stop(context.Canceled)
	if err := r.RoundAhead(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("it does not wait: %v", err)
	}
}
