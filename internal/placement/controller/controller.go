package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/placement"
	"github.com/godwit/godwit/internal/staging"
)

// Controller carries out the placement policies of this node's containers. Each policy is in a file of its
// own, so that the next agent goes on with it; the copies are idle meanwhile.
type Controller struct {
	config Config
	dir    string
	world  world
	ctx    context.Context //nolint:containedctx // The life of the daemon.
	log    *slog.Logger

	mu   sync.Mutex
	all  map[string]*follower // by container
	over bool
}

// world is what policies observe and act upon.
type world interface {
	// situation observes the container, its copies and the nodes; where says whether the container is here.
	situation(ctx context.Context, p placement.Policy, live Live) (s placement.Situation,
		where whereabouts, err error)
	// stage begins a copy that becomes idle when the stage ends.
	stage(ctx context.Context, container, node string, rate float64, until time.Time) (Live, error)
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

// whereabouts say whether a container is here.
type whereabouts int

const (
	isHere    whereabouts = iota
	isMoving              // a migration has to do with it
	isMissing             // it is not here, or does not run
)

// maxPolicies bounds the policies of one node.
const maxPolicies = 1024

// Open reads the policies that an earlier agent has left. ctx is the life of the node.
func Open(ctx context.Context, config Config) (*Controller, error) {
	c := &Controller{
		config: config, dir: config.Dir, world: newObserver(config), ctx: ctx, log: config.Log,
		all: map[string]*follower{},
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return nil, fmt.Errorf("policies of copies: %w", err)
	}
	files, err := os.ReadDir(c.dir)
	if err != nil {
		return nil, fmt.Errorf("policies of copies: %w", err)
	}
	for _, file := range files {
		container, is := strings.CutSuffix(file.Name(), ".json")
		if !is || migration.CheckContainerID(container) != nil {
			continue
		}
		if err := c.read(container); err != nil { // one that cannot be read must not keep a node from serving
			c.log.Info("cannot read a placement policy", "container", container, "error", err)
			_ = os.Remove(c.path(container))
		}
	}
	return c, nil
}

func (c *Controller) path(container string) string { return filepath.Join(c.dir, container+".json") }

func (c *Controller) read(container string) error {
	data, err := os.ReadFile(c.path(container))
	if err != nil {
		return err
	}
	var read document
	if err := json.Unmarshal(data, &read); err != nil {
		return err
	}
	if read.Policy.Container != container {
		return fmt.Errorf("it belongs to container %.80q", read.Policy.Container)
	}
	f := newFollower(c, read.Policy)
	f.left = gone{read.Left, read.LeftBy}
	c.all[container] = f
	return nil
}

// Begin begins to carry out the policies that were read.
func (c *Controller) Begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.all {
		f.launch()
	}
}

// set makes a policy durable, and begins to carry it out: instead of the one that the container
// has, and with its copies.
func (c *Controller) set(p placement.Policy) error {
	if err := p.Check(time.Now()); err != nil {
		return fmt.Errorf("%w: %w", api.ErrInvalid, err)
	}
	for {
		f, err := c.take(p)
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
func (c *Controller) take(p placement.Policy) (*follower, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over { // what there is of them ends, but stays known
		return nil, fmt.Errorf("%w: the agent ends", engine.ErrBusy)
	}
	if f := c.all[p.Container]; f != nil {
		return f, nil
	}
	if len(c.all) >= maxPolicies {
		return nil, fmt.Errorf("%w: this node has policies of %d containers", engine.ErrBusy, len(c.all))
	}
	f := newFollower(c, p)
	c.all[p.Container] = f
	f.launch()
	return f, nil
}

// forget is called by a follower that has ended.
func (c *Controller) forget(f *follower, container string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all[container] == f {
		delete(c.all, container)
	}
	c.world.forget(container)
	return kernel.RemoveDurable(c.path(container))
}

func (c *Controller) save(container string, data []byte) error {
	return kernel.WriteFileAtomic(c.path(container), data, 0o600)
}

// of is the follower of a container; nil: it has no policy.
func (c *Controller) of(container string) *follower {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[container]
}

func (c *Controller) list() []*follower {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]*follower, 0, len(c.all))
	for _, f := range c.all {
		list = append(list, f)
	}
	slices.SortFunc(list, func(a, b *follower) int { return strings.Compare(a.container, b.container) })
	return list
}

// Close ends the work; policies stay, and copies become idle.
func (c *Controller) Close() {
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	for _, f := range c.list() {
		f.cancel()
	}
	for _, f := range c.list() {
		<-f.done
	}
}

// Free refuses to stage a container by hand that has a policy: there is one tracker of its memory.
func (c *Controller) Free(ctx context.Context, reference string) error {
	if c.named(ctx, reference) == nil {
		return nil
	}
	return fmt.Errorf("%w: %s has a placement policy already; end it with \"godwit stage rm %s\" first",
		engine.ErrBusy, reference, reference)
}

// named is the follower of a container; nil: it has no policy, or is not here.
func (c *Controller) named(ctx context.Context, reference string) *follower {
	container, err := c.config.Containers.Inspect(ctx, reference)
	if err != nil {
		return nil // who does something with it tells it better
	}
	return c.of(container.Definition.ID)
}

// LeaveOut makes no copy at a node any more that a user has named on the container's path. False: the
// container has no policy.
func (c *Controller) LeaveOut(ctx context.Context, reference, node string) (placed bool, err error) {
	f := c.named(ctx, reference)
	if f == nil {
		return false, nil
	}
	return true, f.leaveOut(ctx, reference, node)
}

// leaveOut makes no copy at a node any more, if a user has named it.
func (f *follower) leaveOut(ctx context.Context, container, node string) error {
	if f.without(ctx, node) {
		return nil
	}
	if f.snapshot().Nearest > 0 {
		return fmt.Errorf("%w: copies of %s are already kept at its nearest neighbours: \"godwit stage rm "+
			"%s\" ends that", api.ErrRefused, container, container)
	}
	return staging.NotStaged{Container: container, Node: node}
}

// Left tells that a migration has taken a container to another node, and which copy of its memory was kept
// here; no node: none. The policy goes there, too. That it could not be written down does not hold up the
// migration: then it goes if this agent lives.
func (c *Controller) Left(container, node, migration string, kept placement.Copy) {
	f := c.of(container)
	if f == nil {
		return
	}
	if err := f.leave(gone{node, migration}, kept); err != nil {
		c.log.Info("cannot save a placement policy", "container", container, "error", err)
	}
}

// ResidualTime is for how long a residual copy of a container is worth keeping here; 0: the container
// has no policy by which it may come back.
func (c *Controller) ResidualTime(container, node string) time.Duration {
	f := c.of(container)
	if f == nil || !f.snapshot().Returns(node) {
		return 0
	}
	return idleFor
}

// AgeAt is the age of the copy at a node, idle or live; 0: there is no whole copy.
func (c *Controller) AgeAt(container, node string) time.Duration {
	f := c.of(container)
	if f == nil {
		return 0
	}
	p := f.snapshot()
	if there := p.At(node); there != nil && !there.Fresh.IsZero() {
		return max(time.Since(there.Fresh), time.Millisecond)
	}
	return 0
}

var errOff = errors.New("it was ended by a user")
