package staging

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/residual"
)

// A copy that was staged here becomes an idle copy when its connection ends, if the other node asked for
// that when the stage began. An idle copy is kept as a residual copy: in memory that is not swapped,
// within the limit of residual copies. When any node later moves the container here, or stages it here
// again, unchanged pages need not be sent. An idle copy goes when no node has renewed it for a while.

// maxIdle is how long an idle copy stays at most unless a node renews it.
const maxIdle = time.Hour

// CheckIdle refuses a time for which no idle copy can be kept.
func CheckIdle(keep float64) error {
	if !(keep >= 0) || keep > maxIdle.Seconds() {
		return fmt.Errorf("%w: an idle copy can be kept for at most %s", api.ErrInvalid,
			maxIdle)
	}
	return nil
}

// keepIdle keeps the pages of a copy whose connection has ended: any part is of use.
func (c *Copies) keepIdle(one *Copy) {
	one.mu.Lock()
	keep, fresh, rounds := one.keep, one.fresh, one.rounds
	one.mu.Unlock()
	pages := one.takePages()
	if pages == nil {
		return // a migration has it, or nothing has come
	}
	if keep == 0 || c.ctx.Err() != nil || c.target.Has(one.definition.ID) {
		_ = pages.Close() // memory: there is nothing that could fail
		return
	}
	if before, _, _ := c.residuals.Holds(one.definition.ID); rounds == 0 && before > pages.Bytes() {
		_ = pages.Close() // what was here before is more
		return
	}
	of := residual.Origin{
		ID: one.id, Container: one.definition.Name, ContainerID: one.definition.ID, Peer: one.from,
		Node: c.node, Started: one.started, Fresh: fresh, Idle: true, Partial: rounds == 0,
	}
	made, err := c.residuals.Take(of, pages, filepath.Join(c.runDir, "park-"+newID()), keep)
	if made == nil {
		c.log.Info("staged copy of a container not kept as an idle copy", "container", one.definition.Name,
			"from", one.from, "error", err)
		return
	}
	c.residuals.Add(made)
	if c.target.Has(one.definition.ID) { // it has come meanwhile
		c.residuals.Drop(one.definition.ID)
	}
	c.log.Info("staged copy of a container is idle", "container", one.definition.Name, "from", one.from,
		"bytes", made.Bytes(), "incomplete", err)
}

// AwaitIdle waits until the copies of a container that a node has staged here are idle or gone. That
// node does not ask about a copy that is live.
func (c *Copies) AwaitIdle(ctx context.Context, container, from string) error {
	for _, one := range c.List() {
		if one.definition.ID == container && one.from == from {
			if err := waitFor(ctx, one.done); err != nil {
				return err
			}
		}
	}
	return nil
}

// LetGo drops the copies of a container: the idle one, and one that a node is just staging.
func (c *Copies) LetGo(ctx context.Context, container, from string) error {
	for _, one := range c.List() {
		if one.definition.ID == container && one.from == from {
			one.drop(errCopyUnwanted)
		}
	}
	if err := c.AwaitIdle(ctx, container, from); err != nil {
		return err
	}
	c.residuals.Drop(container)
	return nil
}

var errCopyUnwanted = errors.New("the copy is no longer needed")
