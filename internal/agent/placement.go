package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/placement"
	"github.com/godwit/godwit/internal/staging"
)

// placements are the placement policies of this node's containers, by container. Each is in a file of its
// own, so that the next agent goes on with it; the copies are idle meanwhile.
type placements struct {
	dir   string
	world placementWorld
	ctx   context.Context //nolint:containedctx // The life of the daemon.
	log   func(message string, arguments ...any)

	mu   sync.Mutex
	all  map[string]*follower
	over bool
}

// placementWorld is what policies observe and act upon: the agent.
type placementWorld interface {
	// situation observes the container, its copies and the nodes; where says whether the container is here.
	situation(ctx context.Context, p placement.Policy, live liveCopy) (s placement.Situation,
		where whereabouts, err error)
	// stage begins a copy that becomes idle when the stage ends.
	stage(ctx context.Context, container, node string, rate float64, until time.Time) (liveCopy, error)
	// keep lets the copy at a node stay for some time, and returns how much of it is there; 0: drop it.
	keep(ctx context.Context, container, node string, d time.Duration) (idleCopy, error)
	// follow hands a policy over to the node to which a migration has brought its container.
	follow(ctx context.Context, to gone, p placement.Policy) error
	// forget is called when a container has no policy any more.
	forget(container string)
}

// idleCopy is an idle copy at another node.
type idleCopy struct {
	bytes int64
	whole bool
}

// gone is where a container is that has left.
type gone struct {
	node      string // empty: it has not
	migration string // by which
}

// liveCopy is a stage. See staging.Stage.
type liveCopy interface {
	Describe() migration.Stage
	Refresh()
	LimitTo(rate float64)
	End(ctx context.Context, why error) error
	Target() string
}

// whereabouts say whether a container is here.
type whereabouts int

const (
	isHere    whereabouts = iota
	isMoving              // a migration has to do with it
	isMissing             // it is not here, or does not run
)

// maxPolicies bounds the policies of one node.
const maxPolicies = 1024

// placementFile is what is durable of a policy.
type placementFile struct {
	Policy placement.Policy `json:"policy"`
	// the node to which the container has gone; it is to get the policy
	Left   string `json:"left,omitempty"`
	LeftBy string `json:"left_by,omitempty"` // the migration
}

// openPlacements reads the policies that an earlier agent has left.
func openPlacements(a *Agent) (*placements, error) {
	s := &placements{
		dir: filepath.Join(a.config.StateDir, "ahead"), world: newObserver(a), ctx: a.ctx, log: a.log.Info,
		all: map[string]*follower{},
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("policies of copies: %w", err)
	}
	files, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("policies of copies: %w", err)
	}
	for _, file := range files {
		container, is := strings.CutSuffix(file.Name(), ".json")
		if !is || migration.CheckContainerID(container) != nil {
			continue
		}
		if err := s.read(container); err != nil { // one that cannot be read must not keep a node from serving
			s.log("cannot read a placement policy", "container", container, "error", err)
			_ = os.Remove(s.path(container))
		}
	}
	return s, nil
}

func (s *placements) path(container string) string { return filepath.Join(s.dir, container+".json") }

func (s *placements) read(container string) error {
	data, err := os.ReadFile(s.path(container))
	if err != nil {
		return err
	}
	var file placementFile
	if err := json.Unmarshal(data, &file); err != nil {
		return err
	}
	if file.Policy.Container != container {
		return fmt.Errorf("it belongs to container %.80q", file.Policy.Container)
	}
	f := newFollower(s, file.Policy)
	f.left = gone{file.Left, file.LeftBy}
	s.all[container] = f
	return nil
}

// begin begins to carry out the policies that were read.
func (s *placements) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.all {
		f.launch()
	}
}

// set makes a policy durable, and begins to carry it out: instead of the one that the container
// has, and with its copies.
func (s *placements) set(p placement.Policy) error {
	if err := p.Check(time.Now()); err != nil {
		return fmt.Errorf("%w: %w", errInvalid, err)
	}
	for {
		f, err := s.take(p)
		if err != nil {
			return err
		}
		if done, err := f.replace(p); done {
			return err
		}
		<-f.done // it has just come to its end
	}
}

// take is the follower of a policy's container, which is made if there is none.
func (s *placements) take(p placement.Policy) (*follower, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over { // what there is of them ends, but stays known
		return nil, fmt.Errorf("%w: the agent ends", engine.ErrBusy)
	}
	if f := s.all[p.Container]; f != nil {
		return f, nil
	}
	if len(s.all) >= maxPolicies {
		return nil, fmt.Errorf("%w: this node has policies of %d containers", engine.ErrBusy, len(s.all))
	}
	f := newFollower(s, p)
	s.all[p.Container] = f
	f.launch()
	return f, nil
}

// forget is called by a follower that has ended.
func (s *placements) forget(f *follower, container string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[container] == f {
		delete(s.all, container)
	}
	s.world.forget(container)
	return kernel.RemoveDurable(s.path(container))
}

func (s *placements) save(container string, data []byte) error {
	return kernel.WriteFileAtomic(s.path(container), data, 0o600)
}

// of is the follower of a container; nil: it has no policy.
func (s *placements) of(container string) *follower {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[container]
}

func (s *placements) list() []*follower {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*follower, 0, len(s.all))
	for _, f := range s.all {
		list = append(list, f)
	}
	slices.SortFunc(list, func(a, b *follower) int { return strings.Compare(a.container, b.container) })
	return list
}

// close ends the work; policies stay, and copies become idle.
func (s *placements) close() {
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	for _, f := range s.list() {
		f.cancel()
	}
	for _, f := range s.list() {
		<-f.done
	}
}

// placementFree refuses to stage a container by hand that has a policy: there is one tracker of its memory.
func (a *Agent) placementFree(ctx context.Context, reference string) error {
	if a.placementOf(ctx, reference) == nil {
		return nil
	}
	return fmt.Errorf("%w: %s has a placement policy already; end it with \"godwit stage rm %s\" first",
		engine.ErrBusy, reference, reference)
}

// placementOf is the follower of a container; nil: it has no policy, or is not here.
func (a *Agent) placementOf(ctx context.Context, reference string) *follower {
	container, err := a.engines.Inspect(ctx, reference)
	if err != nil {
		return nil // who does something with it tells it better
	}
	return a.placements.of(container.Definition.ID)
}

// leaveOut makes no copy at a node any more, if a user has named it.
func (f *follower) leaveOut(ctx context.Context, container, node string) error {
	if f.without(ctx, node) {
		return nil
	}
	if f.snapshot().Nearest > 0 {
		return fmt.Errorf("%w: copies of %s are already kept at its nearest neighbours: \"godwit stage rm "+
			"%s\" ends that", errRefused, container, container)
	}
	return staging.NotStaged{Container: container, Node: node}
}

// left tells that a container has gone to another node. What is to be copied where goes there, too.
// That it could not be written down does not hold up the migration: then it goes if this agent
// lives.
func (s *placements) left(container string, to gone, kept placement.Copy) {
	f := s.of(container)
	if f == nil {
		return
	}
	if err := f.leave(to, kept); err != nil {
		s.log("cannot save a placement policy", "container", container, "error", err)
	}
}

// residualTime is for how long a residual copy of a container is worth keeping here; 0: the container
// has no policy by which it may come back.
func (s *placements) residualTime(container, node string) time.Duration {
	f := s.of(container)
	if f == nil || !f.snapshot().Returns(node) {
		return 0
	}
	return idleFor
}

// ageAt is the age of the copy at a node, idle or live; 0: there is no whole copy.
func (s *placements) ageAt(container, node string) time.Duration {
	f := s.of(container)
	if f == nil {
		return 0
	}
	p := f.snapshot()
	if c := p.At(node); c != nil && !c.Fresh.IsZero() {
		return max(time.Since(c.Fresh), time.Millisecond)
	}
	return 0
}

var errPlacementOff = errors.New("it was ended by a user")
