package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/residual"
)

// A copy that was staged here becomes an idle copy when its connection ends, if the other node asked for
// that when the stage began. An idle copy is kept as a residual copy: in memory that is not swapped,
// within the limit of residual copies. When any node later moves the container here, or stages it here
// again, unchanged pages need not be sent. An idle copy goes when no node has renewed it for a while.

// maxIdle is how long an idle copy stays at most unless a node renews it.
const maxIdle = time.Hour

func checkIdle(keep float64) error {
	if !(keep >= 0) || keep > maxIdle.Seconds() {
		return fmt.Errorf("%w: an idle copy can be kept for at most %s", errInvalid,
			maxIdle)
	}
	return nil
}

// keepIdle keeps the pages of a copy whose connection has ended: any part is of use.
func (a *Agent) keepIdle(c *stagedCopy) {
	c.mu.Lock()
	keep, fresh, rounds := c.keep, c.fresh, c.rounds
	c.mu.Unlock()
	pages := c.takePages()
	if pages == nil {
		return // a migration has it, or nothing has come
	}
	if keep == 0 || a.ctx.Err() != nil || a.has(c.definition.ID) {
		_ = pages.Close() // memory: there is nothing that could fail
		return
	}
	if before, _, _ := a.residuals.Holds(c.definition.ID); rounds == 0 && before > pages.Bytes() {
		_ = pages.Close() // what was here before is more
		return
	}
	of := residual.Origin{ID: c.id, Container: c.definition.Name, ContainerID: c.definition.ID, Peer: c.from,
		Node: a.self.Name, Started: c.started, Fresh: fresh, Idle: true, Partial: rounds == 0}
	made, err := a.residuals.Take(of, pages, filepath.Join(a.config.RunDir, "park-"+randomHex(8)), keep)
	if made == nil {
		a.log.Info("staged copy of a container not kept as an idle copy", "container", c.definition.Name,
			"from", c.from, "error", err)
		return
	}
	a.residuals.Add(made)
	if a.has(c.definition.ID) { // it has come meanwhile
		a.residuals.Drop(c.definition.ID)
	}
	a.log.Info("staged copy of a container is idle", "container", c.definition.Name, "from", c.from,
		"bytes", made.Bytes(), "incomplete", err)
}

// has reports whether a container is on this node.
func (a *Agent) has(container string) bool {
	_, err := a.engines.Inspect(a.ctx, container)
	return !errors.Is(err, engine.ErrNotFound)
}

// Keep lets a copy stay, or go. Nothing depends on a copy, so any node may ask.
func (s *peerService) Keep(ctx context.Context, request *api.KeepRequest) (*api.KeepReply, error) {
	from, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(migration.CheckContainerID(request.Container),
		checkIdle(request.Seconds)); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if request.Seconds == 0 {
		return &api.KeepReply{}, wireError(s.agent.letGo(ctx, request.Container, from))
	}
	if err := s.agent.awaitIdle(ctx, request.Container, from); err != nil {
		return nil, wireError(err)
	}
	kept := s.agent.residuals.Extend(request.Container, time.Now().Add(seconds(request.Seconds)))
	if kept == nil {
		return &api.KeepReply{}, nil
	}
	return &api.KeepReply{MemoryBytes: kept.Bytes(), Incomplete: !kept.Whole()}, nil
}

// awaitIdle waits until the copies of a container that a node has staged here are idle or gone. That
// node does not ask about a copy that is live.
func (a *Agent) awaitIdle(ctx context.Context, container, from string) error {
	for _, c := range a.stagedCopies.list() {
		if c.definition.ID == container && c.from == from {
			if err := waitFor(ctx, c.done); err != nil {
				return err
			}
		}
	}
	return nil
}

// letGo drops the copies of a container: the idle one, and one that a node is just staging.
func (a *Agent) letGo(ctx context.Context, container, from string) error {
	for _, c := range a.stagedCopies.list() {
		if c.definition.ID == container && c.from == from {
			c.drop(errCopyUnwanted)
		}
	}
	if err := a.awaitIdle(ctx, container, from); err != nil {
		return err
	}
	a.residuals.Drop(container)
	return nil
}

var errCopyUnwanted = errors.New("the copy is no longer needed")
