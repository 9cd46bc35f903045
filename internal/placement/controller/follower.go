package controller

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/placement"
	"github.com/godwit/godwit/internal/staging"
)

const (
	tickEvery = 500 * time.Millisecond
	// idleFor is how long an idle copy stays at another node after it was last renewed. It is renewed
	// three times as often.
	idleFor = 10 * time.Minute
	// saveEvery is how often is written down what has come of a policy; that there is another one,
	// or that it goes, at once.
	saveEvery = 10 * time.Second
)

// follower carries out the policy of one container.
type follower struct {
	owner     *Controller
	container string
	ctx       context.Context //nolint:containedctx // Its own life: it outlives the call that begins it.
	cancel    context.CancelFunc
	done      chan struct{}

	work    sync.Mutex // held while something is done by the policy
	policy  placement.Policy
	live    Live  // nil: none
	before  int64 // bytes that were sent for the copy that is live, before it was
	asked   int   // rounds of it, and the one that it was asked for
	renewed time.Time
	savedAt time.Time

	record
}

func newFollower(owner *Controller, p placement.Policy) *follower {
	f := &follower{owner: owner, container: p.Container, policy: p.Clone(), done: make(chan struct{})}
	f.told, f.store = p.Clone(), func(data []byte) error { return owner.save(p.Container, data) }
	f.ctx, f.cancel = context.WithCancel(owner.ctx)
	return f
}

// launch runs the follower beside the caller.
func (f *follower) launch() {
	guard.Go(func() error {
		f.run()
		return nil
	})
}

// run goes on until the policy has come to its end, or the agent.
func (f *follower) run() {
	defer close(f.done)
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for !f.stepped() {
		select {
		case <-f.ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// stepped does what is due, and tells whether the policy has come to its end.
func (f *follower) stepped() (over bool) {
	f.work.Lock()
	defer f.work.Unlock()
	if f.ended || f.ctx.Err() != nil {
		return true
	}
	err := guard.Do(func() error {
		why := f.step(f.ctx, time.Now())
		if why != "" {
			f.finish(f.ctx, why)
		}
		over = why != ""
		return nil
	})
	if err != nil { // the next tick tries again
		f.owner.log.Info("placement of copies: a step failed", "container", f.container, "error", err,
			"stack", guard.Stack(err))
	}
	return over
}

// step does what is due; its text says why the policy has come to its end.
func (f *follower) step(ctx context.Context, now time.Time) string {
	s, where, err := f.owner.world.situation(ctx, f.policy, f.live)
	if err != nil {
		return "" // nothing is known
	}
	f.note(now, where)
	gone := f.goneTo()
	switch {
	case where == isMoving:
		f.renewed = time.Time{} // a migration may use a copy up
		f.publish(f.policy, placement.Decision{})
		return ""
	case where == isHere && gone.node != "": // it has come back before it was told to anybody
		f.policy.Arrive(s.Node)
		f.stay()
	case gone.node != "":
		return f.handOver(ctx, gone, now)
	case where == isMissing:
		return "the container has ended"
	}
	f.renew(ctx, now)
	d := f.policy.Decide(s)
	if d.Over != "" {
		return d.Over
	}
	f.carryOut(ctx, d, now)
	f.publish(f.policy, d)
	if err := f.save(now, false); err != nil {
		f.owner.log.Info("cannot save a placement policy", "container", f.container, "error", err)
	}
	return ""
}

// note takes what has become of the copy that is live.
func (f *follower) note(now time.Time, where whereabouts) {
	if f.live == nil {
		return
	}
	told := f.live.Describe()
	c := f.policy.Make(f.live.Target())
	c.SentBytes = f.before + told.SentBytes
	if told.Rounds <= 1 { // later rounds bring what is there already
		c.Bytes = max(c.Bytes, told.MemoryBytes)
	}
	if told.Rounds > 0 {
		c.Fresh, c.Seconds, c.Failures, c.Error = told.Fresh, told.RoundSeconds, 0, ""
	}
	if told.State != migration.StageEnded {
		return
	}
	f.live = nil
	if where == isHere {
		f.failed(c.Node, errors.New(told.Error), now)
	}
}

// failed notes that a copy could not be made, or was lost.
func (f *follower) failed(node string, err error, now time.Time) {
	c := f.policy.Make(node)
	c.Failures, c.Tried, c.Error = c.Failures+1, now, bounded(api.Plain(err))
	f.renewed = time.Time{} // is there anything left?
}

// renew renews idle copies, and forgets those that are gone.
func (f *follower) renew(ctx context.Context, now time.Time) {
	if now.Sub(f.renewed) < idleFor/3 {
		return
	}
	f.renewed = now
	for _, c := range f.snapshotCopies() {
		if f.live != nil && f.live.Target() == c.Node {
			continue
		}
		if have, err := f.owner.world.keep(ctx, f.container, c.Node, idleFor); err == nil {
			f.policy.At(c.Node).Kept(have.bytes, have.whole)
		}
	}
}

func (f *follower) snapshotCopies() []placement.Copy { return f.policy.Clone().Copies }

// bounded is a text that is not longer than another node takes.
func bounded(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), placement.MaxError)], "")
}

// carryOut does what was decided.
func (f *follower) carryOut(ctx context.Context, d placement.Decision, now time.Time) {
	for _, node := range d.Drop {
		f.drop(ctx, node)
	}
	if f.live != nil && f.live.Target() != d.Live {
		f.keepIdle(ctx, now)
	}
	if d.Live == "" {
		return
	}
	if f.live == nil {
		f.begin(ctx, d, now)
		return
	}
	f.live.LimitTo(d.Rate)
	if rounds := f.live.Describe().Rounds; d.Round && rounds > 0 && rounds >= f.asked {
		f.asked = rounds + 1
		f.live.Refresh()
	}
}

func (f *follower) begin(ctx context.Context, d placement.Decision, now time.Time) {
	live, err := f.owner.world.stage(ctx, f.container, d.Live, d.Rate, f.policy.Until)
	if err != nil {
		f.failed(d.Live, err, now)
		return
	}
	f.live, f.asked, f.before = live, 0, f.policy.Make(d.Live).SentBytes
}

// keepIdle ends the live copy's stage; the copy stays where it is, idle.
func (f *follower) keepIdle(ctx context.Context, now time.Time) {
	if f.live == nil {
		return
	}
	if err := f.live.End(ctx, staging.ErrIdle); err != nil {
		return // the agent ends
	}
	node := f.live.Target()
	f.note(now, isMoving)
	f.checkKept(ctx, node, now)
}

// checkKept asks how much a node has kept of a copy that has just become idle there. If some of the copy
// is lost, the copy is made again, but ever less often: each attempt costs a whole copy, and rounds that
// go well in between do not mean that the node keeps it the next time.
func (f *follower) checkKept(ctx context.Context, node string, now time.Time) {
	have, err := f.owner.world.keep(ctx, f.container, node, idleFor)
	if err != nil {
		f.renewed = time.Time{} // it is asked again
		return
	}
	c := f.policy.Make(node)
	lost := !c.Fresh.IsZero() && !have.whole
	c.Kept(have.bytes, have.whole)
	if !lost {
		return
	}
	f.failed(node, errNotKept, now)
	c.Unkept++
	c.Failures = c.Unkept
}

var errNotKept = errors.New("the copy could not be kept: that node is short of memory, or its kernel lacks " +
	"memory that is not swapped")

// drop lets a copy go. A node that cannot be told gives it up when nobody asks for it any more.
func (f *follower) drop(ctx context.Context, node string) {
	if f.live != nil && f.live.Target() == node {
		_ = f.live.End(ctx, staging.ErrUnwanted) // otherwise the agent ends
		f.live = nil
	}
	if _, err := f.owner.world.keep(ctx, f.container, node, 0); err != nil {
		f.owner.log.Info("cannot remove a copy", "container", f.container, "node", node, "error", err)
	}
	f.policy.Forget(node)
}

// finish lets all copies go, and the policy.
func (f *follower) finish(ctx context.Context, why string) {
	if f.goneTo().node == "" {
		var all sync.WaitGroup
		for _, c := range f.snapshotCopies() {
			if f.live != nil && f.live.Target() == c.Node {
				continue
			}
			all.Go(func() {
				_ = guard.Do(func() error {
					_, err := f.owner.world.keep(ctx, f.container, c.Node, 0)
					return err
				})
			})
		}
		all.Wait()
		if f.live != nil {
			f.drop(ctx, f.live.Target())
		}
	}
	f.cancel()
	err := f.end(func() error { return f.owner.forget(f, f.container) })
	f.owner.log.Info("placement of copies ended", "container", f.container, "why", why, "error", err)
}

// off ends the policy because a user wants that.
func (f *follower) off(ctx context.Context) {
	f.work.Lock()
	defer f.work.Unlock()
	if !f.ended {
		f.finish(ctx, errOff.Error())
	}
}

// without leaves a node out of a path; false: it is not on it.
func (f *follower) without(ctx context.Context, node string) bool {
	f.work.Lock()
	defer f.work.Unlock()
	rest := slices.DeleteFunc(slices.Clone(f.policy.Path),
		func(s placement.Stop) bool { return s.Node == node })
	if f.ended || len(rest) == len(f.policy.Path) {
		return false
	}
	f.policy.Path = rest
	f.drop(ctx, node)
	if len(rest) == 0 {
		f.finish(ctx, errOff.Error())
		return true
	}
	f.publish(f.policy, placement.Decision{})
	if err := f.save(time.Now(), true); err != nil {
		f.owner.log.Info("cannot save a placement policy", "container", f.container, "error", err)
	}
	return true
}

// replace gives it another policy, with the copies that there are. False: it has come to its end.
func (f *follower) replace(p placement.Policy) (done bool, err error) {
	f.work.Lock()
	defer f.work.Unlock()
	if f.ended || f.ctx.Err() != nil {
		return f.owner.ctx.Err() != nil, f.owner.ctx.Err()
	}
	for _, c := range f.policy.Copies {
		if p.At(c.Node) == nil {
			p.Copies = append(p.Copies, c)
		}
	}
	f.policy, f.renewed = p.Clone(), time.Time{}
	f.publish(f.policy, placement.Decision{})
	return true, f.save(time.Now(), true)
}
