package controller

import (
	"context"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/placement"
)

// Place gives a container the policy that a user wants, and returns what is expected of its copies.
func (c *Controller) Place(ctx context.Context, request *api.StageAheadRequest) ([]migration.Stage, error) {
	container, err := c.config.Containers.Idle(ctx, request.Container)
	if err != nil {
		return nil, err
	}
	if container.State != engine.Running {
		return nil, fmt.Errorf("%w: %s is %s; only a running container can be staged", engine.ErrNotRunning,
			container.Definition.Name, container.State)
	}
	now := time.Now()
	p, err := c.policyOf(request, container.Definition, now)
	if err != nil {
		return nil, err
	}
	if node := c.config.Stages.Target(p.Container); node != "" && c.of(p.Container) == nil {
		return nil, fmt.Errorf("%w: %s is staged at %s already: \"godwit stage rm %s %s\" first",
			engine.ErrBusy, container.Definition.Name, node, container.Definition.Name, node)
	}
	if err := c.checkBudget(ctx, p, container.Definition.Name); err != nil {
		return nil, err
	}
	// takes a second, in which it is measured
	situation, _, err := newObserver(c.config).situation(ctx, p, nil)
	if err != nil {
		return nil, err
	}
	if err := c.order(c.config.Migrations.BroughtBy(p.Container), p); err != nil {
		return nil, err
	}
	return c.describe(p, p.Decide(situation), nil), nil
}

// policyOf is what a user wants; what makes no sense is refused.
func (c *Controller) policyOf(request *api.StageAheadRequest, definition engine.Definition,
	now time.Time) (placement.Policy, error) {
	p := placement.Policy{
		Container: definition.ID, Engine: definition.EngineName, Nearest: int(request.Nearest),
		BudgetBytes:    request.BudgetBytes,
		BandwidthLimit: request.BandwidthLimitBitsPerSecond,
	}
	for _, stop := range request.Path {
		if _, err := c.config.Nodes.Find(stop.Node); err != nil {
			return p, err
		}
		p.Path = append(p.Path, placement.Stop{Node: stop.Node,
			Deadline: time.Unix(0, stop.DeadlineUnixNanoseconds)})
	}
	if err := p.Sort(now); err != nil {
		return p, fmt.Errorf("%w: %w", api.ErrInvalid, err)
	}
	if len(p.Path) > 0 { // it may come back later
		if err := migration.CheckRoute(c.config.Node, p.Path[0].Node); err != nil {
			return p, fmt.Errorf("%w: %w", api.ErrRefused, err)
		}
	}
	if request.KeepSeconds == 0 && p.Nearest > 0 { // until a user ends it
		request.KeepSeconds = migration.MaxKeep.Seconds()
	}
	keep := migration.StageSettings{Keep: seconds(request.KeepSeconds),
		BandwidthLimit: request.BandwidthLimitBitsPerSecond}
	keep, err := keep.Complete()
	if err != nil {
		return p, fmt.Errorf("%w: %w", api.ErrInvalid, err)
	}
	p.Until = now.Add(keep.Keep)
	if len(p.Path) > 0 {
		p.Until = p.Path[len(p.Path)-1].Deadline.Add(keep.Keep)
	}
	if err := p.Check(now); err != nil {
		return p, fmt.Errorf("%w: %w", api.ErrInvalid, err)
	}
	return p, nil
}

// checkBudget refuses a budget in which there is no room for a single copy.
func (c *Controller) checkBudget(ctx context.Context, p placement.Policy, name string) error {
	if p.BudgetBytes == 0 {
		return nil
	}
	memory, err := c.config.Containers.MemoryBytes(ctx, p.Container)
	if err != nil {
		return err
	}
	if memory > p.BudgetBytes {
		return fmt.Errorf("%w: a budget of %d MiB is too small: one copy of %s takes %d MiB", api.ErrRefused,
			p.BudgetBytes>>20, name, memory>>20+1)
	}
	return nil
}

// Unplace ends the policy of a container, and lets its copies go.
func (c *Controller) Unplace(ctx context.Context, reference string) error {
	container, err := c.config.Containers.Find(ctx, reference)
	if err != nil {
		return err
	}
	f := c.of(container.Definition.ID)
	if f == nil {
		return fmt.Errorf("%w: %s has no placement policy; \"godwit stage ls\" lists what is staged",
			engine.ErrNotFound, container.Definition.Name)
	}
	f.off(ctx)
	return nil
}
