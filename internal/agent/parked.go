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
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
)

// A copy that was staged here is parked when its connection ends, if the other node has asked for
// that when it began: it becomes a residual copy, in memory that is not swapped, within the limit of
// those. So the next one who brings the container here, or stages it again, from whichever node it
// is at then, need not send what has not changed. It goes when nobody has asked for a while that it
// stay.

// mostParked is how long a parked copy stays at most if nobody asks for more.
const mostParked = time.Hour

func checkParked(keep float64) error {
	if !(keep >= 0) || keep > mostParked.Seconds() {
		return fmt.Errorf("%w: a copy is kept for %s at most when its connection has ended", errInvalid, mostParked)
	}
	return nil
}

// park keeps what there is of a copy whose connection has ended: any part is of use.
func (a *Agent) park(b *base) {
	b.mu.Lock()
	keep, fresh, rounds := b.keep, b.fresh, b.rounds
	b.mu.Unlock()
	pages := b.takePages()
	if pages == nil {
		return // a migration has it, or nothing has come
	}
	if keep == 0 || a.ctx.Err() != nil || a.has(b.definition.ID) {
		_ = pages.Close() // memory: there is nothing that could fail
		return
	}
	if rounds == 0 && a.residuals.copyOf(b.definition.ID, "").Bytes > pages.Bytes() {
		_ = pages.Close() // what was here before is more
		return
	}
	made, err := a.parkPages(b, pages)
	if made == nil {
		a.log.Info("copy of a container not parked", "container", b.definition.Name, "from", b.from, "error", err)
		return
	}
	made.fresh, made.until, made.incomplete = fresh, time.Now().Add(keep), err != nil || rounds == 0
	a.residuals.add(made)
	if a.has(b.definition.ID) { // it has come meanwhile
		a.residuals.drop(b.definition.ID)
	}
	a.log.Info("copy of a container parked", "container", b.definition.Name, "from", b.from, "bytes", made.pages.Bytes(), "incomplete", err)
}

// has tells whether a container is on this node.
func (a *Agent) has(container string) bool {
	_, err := a.engines.Inspect(a.ctx, container)
	return !errors.Is(err, engine.ErrNotFound)
}

// parkPages moves pages to where they are not swapped. What could be moved is of use, also if there
// is an error.
func (a *Agent) parkPages(b *base, pages *memory.Store) (*residual, error) {
	a.residuals.drop(b.definition.ID)
	room, err := a.residuals.room(pages.Bytes(), pages.Bytes())
	if err != nil {
		return nil, errors.Join(err, pages.Close())
	}
	file, err := unswappedFile(filepath.Join(a.config.RunDir, "park-"+randomHex(8)))
	if err != nil {
		return nil, errors.Join(err, pages.Close())
	}
	made := &residual{
		definition: b.definition, pages: memory.NewResidual(file, room), id: b.id, target: b.from, node: a.self.Name,
		started: b.started, parked: true,
	}
	err = made.pages.Take(pages)
	if made.pages.Bytes() == 0 {
		return nil, errors.Join(err, made.pages.Close())
	}
	return made, err
}

// Keep lets a copy stay, or go. It is nothing that anybody would miss, so any node may say so.
func (s *peerService) Keep(ctx context.Context, request *api.KeepRequest) (*api.KeepReply, error) {
	from, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(migration.CheckContainerID(request.Container), checkParked(request.Seconds)); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if request.Seconds == 0 {
		return &api.KeepReply{}, wireError(s.agent.letGo(ctx, request.Container, from))
	}
	if err := s.agent.awaitParked(ctx, request.Container, from); err != nil {
		return nil, wireError(err)
	}
	kept := s.agent.residuals.extend(request.Container, time.Now().Add(seconds(request.Seconds)))
	if kept == nil {
		return &api.KeepReply{}, nil
	}
	return &api.KeepReply{MemoryBytes: kept.pages.Bytes(), Incomplete: kept.incomplete}, nil
}

// awaitParked waits until what a node has staged here of a container is parked. That node does not
// ask for a copy that is live.
func (a *Agent) awaitParked(ctx context.Context, container, from string) error {
	for _, b := range a.bases.list() {
		if b.definition.ID == container && b.from == from {
			if err := waitFor(ctx, b.done); err != nil {
				return err
			}
		}
	}
	return nil
}

// letGo drops what there is of a container: parked, or just being staged by a node.
func (a *Agent) letGo(ctx context.Context, container, from string) error {
	for _, b := range a.bases.list() {
		if b.definition.ID == container && b.from == from {
			b.drop(errBaseUnwanted)
		}
	}
	if err := a.awaitParked(ctx, container, from); err != nil {
		return err
	}
	a.residuals.drop(container)
	return nil
}

var errBaseUnwanted = errors.New("it is not wanted any more")
