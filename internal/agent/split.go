package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/wire/identity"
)

// split bounds for how long both nodes are needed after the handover of a migration from this node: what was predicted before it began is
// measured again by its rounds.
type split struct {
	mu       sync.Mutex
	limit    migration.SplitLimit
	asked    migration.SplitLimit // of a user who asks for it while the migration is under way
	expected time.Duration        // if the container were handed over now; 0: not known
	bits     float64              // per second, of the link with which that was predicted; 0: it was not
}

// newSplit takes what was predicted of a migration, if it was.
func newSplit(use migration.PostCopyUse, settings migration.Settings, auto *autoMode, foreseen *foreseenSplit) *split {
	asked, byAuto := migration.SplitLimits(use, settings)
	s := &split{limit: asked, asked: asked}
	if auto != nil {
		s.limit = byAuto
	}
	if foreseen != nil {
		s.expected, s.bits = foreseen.whole, foreseen.bits
	}
	return s
}

// forbid has all memory go before the handover, for a reason.
func (s *split) forbid(why string) {
	s.limit = migration.SplitLimit{Forbidden: true, By: why}
	s.asked = s.limit
}

// refuses says why the memory must not follow, as far as is known now; empty: it may.
func (s *split) refuses() string {
	if s == nil {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limit.Refuses(s.expected)
}

// request notes that a user asks for it: what bounds only the automatic choice does not count any more.
func (s *split) request() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if why := s.asked.Refuses(s.expected); why != "" {
		return fmt.Errorf("%w: %s", errRefused, why)
	}
	s.limit = s.asked
	return nil
}

// left notes how long the link would take for what is left.
func (s *split) left(took, rtt time.Duration) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expected, s.bits = predict.SplitOver(took, rtt), 0
}

// carries takes into account what the link was measured to carry, when that was predicted with another bandwidth.
func (s *split) carries(bits float64) {
	if s == nil || bits <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bits > 0 {
		s.expected, s.bits = time.Duration(float64(s.expected)*s.bits/bits), bits
	}
}

// foreseenSplit is for how long both nodes are needed if all memory follows, over a link of so many bits per second.
type foreseenSplit struct {
	whole time.Duration
	bits  float64
}

func foreseenOf(in predict.Input) *foreseenSplit {
	expected := predict.Of(in, migration.PostCopy).Split.Expected
	return &foreseenSplit{whole: seconds(min(expected, migration.MaxMaxSplit.Seconds()+1)), bits: in.Link.BandwidthBitsPerSecond}
}

// mayNeedBoth refuses a mode that a user names if both nodes would be needed for longer than allowed. It measures what is not known of the
// link and the container, as the automatic choice does.
func (a *Agent) mayNeedBoth(ctx context.Context, mode migration.Mode, definition engine.Definition, node identity.Node,
	demands predict.Demands) (*foreseenSplit, error) {
	if mode != migration.PostCopy && mode != migration.Hybrid || !demands.Split.Bounded() {
		return nil, nil //nolint:nilnil // nothing is foreseen, because nothing bounds it
	}
	in, err := a.inputForSplit(ctx, mode, definition, node, demands)
	if err != nil {
		return nil, err
	}
	if why := splitProblem(in, mode); why != nil {
		return nil, fmt.Errorf("%w: mode %s: %s; %s", errRefused, mode, why.Why, why.Remedy)
	}
	return foreseenOf(in), nil
}

// inputForSplit is what tells for how long both nodes would be needed.
func (a *Agent) inputForSplit(ctx context.Context, mode migration.Mode, definition engine.Definition, node identity.Node,
	demands predict.Demands) (predict.Input, error) {
	in, err := a.input(ctx, definition, node, demands)
	if err != nil {
		return in, err
	}
	if in.Link.BandwidthBitsPerSecond == 0 {
		if err := a.measure(ctx, node, choiceBudget(in.Container.PrivateBytes+in.Container.SharedBytes)); err != nil {
			return in, fmt.Errorf("node %s: %s", node.Name, plain(err))
		}
		in.Link = a.peers.wayTo(node.Name)
	}
	if len(in.Container.Curve) == 0 && mode == migration.Hybrid {
		a.watchFor(ctx, &in, definition, a.watchTime(in))
	}
	return in, nil
}

// splitProblem is what stands against a mode because both nodes would be needed for too long; nil: nothing.
func splitProblem(in predict.Input, mode migration.Mode) *migration.Problem {
	if mode != migration.PostCopy && mode != migration.Hybrid {
		return nil
	}
	p := predict.Of(in, mode)
	why := in.Demands.Split.Refuses(seconds(min(p.Split.Expected, migration.MaxMaxSplit.Seconds()+1)))
	if why == "" {
		return nil
	}
	return &migration.Problem{
		What: "mode " + string(mode), Why: why, Remedy: "allow more with --max-split, or move it in mode pre-copy or cold",
	}
}

// planSplit adds to a plan what mayNeedBoth would refuse.
func (a *Agent) planSplit(ctx context.Context, plan *migration.Plan, definition engine.Definition, node identity.Node, demands predict.Demands) error {
	in, err := a.inputForSplit(ctx, plan.Mode, definition, node, demands)
	if err != nil {
		return err
	}
	if problem := splitProblem(in, plan.Mode); problem != nil {
		plan.Problems = append(plan.Problems, *problem)
	}
	return nil
}
