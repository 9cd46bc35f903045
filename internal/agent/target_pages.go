package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
	"github.com/godwit/godwit/internal/memory/precopy"
	"github.com/godwit/godwit/internal/wire/stream"
)

var errNoPages = errors.New("memory arrived separately, but is part of the execution state in this mode")

// takeKey begins to receive pages.
func (t *target) takeKey(section io.Reader) error {
	if t.pages == nil {
		return errNoPages
	}
	if t.pipeline != nil {
		return errors.New("a second key for the pages of one migration")
	}
	incoming := precopy.Incoming{Data: t.data, Pages: t.pages, Announced: t.residual != nil,
		Most: precopy.MaxClaims(t.offer.GetMemoryBytes())}
	incoming.Barrier = func(number uint64, missing []memory.TaskMap) error {
		t.telling.Lock()
		defer t.telling.Unlock()
		return precopy.TellPlaced(t.data, number, missing)
	}
	if t.residual != nil && !t.staging { // of what was staged all is here already
		incoming.Residual = t.residual.Pages()
	}
	receiver, key, err := incoming.Receiver(section)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pipeline, t.key = receiver, key
	close(t.piped)
	return nil
}

// receivePages takes a frame. How many pages come is bounded by what the store takes, however often
// they are sent.
func (t *target) receivePages(section io.Reader, buffer []byte) ([]byte, error) {
	return precopy.ReceiveFrame(section, buffer, t.pipeline)
}

// keepPages takes the map of the pages that there must be, when all of them have come.
func (t *target) keepPages(ctx context.Context, section stream.Section) error {
	if t.pipeline == nil {
		return precopy.ErrNoKey
	}
	number, err := strconv.ParseUint(section.Name, 10, 64)
	if err != nil {
		return fmt.Errorf("map of the pages: a barrier %.40q", section.Name)
	}
	maps, err := memory.DecodeMap(section)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = t.pipeline.Fail(context.Cause(ctx)) })
	defer stop()
	if err := errors.Join(t.pipeline.Await(number), t.pipeline.Complete()); err != nil {
		return err
	}
	if err := t.pages.Remote(t.remote); err != nil {
		return err
	}
	return t.pages.Keep(maps)
}

// takeRemote takes the map of the pages that come after the restore.
func (t *target) takeRemote(section io.Reader) error {
	if t.pages == nil {
		return errNoPages
	}
	remote, err := memory.DecodeMap(section)
	if err != nil {
		return fmt.Errorf("pages that come later: %w", err)
	}
	t.remote = remote
	return nil
}

// attachPages receives pages over one more connection, until it ends.
func (t *target) attachPages(ctx context.Context, data *stream.Session) error {
	t.mu.Lock()
	t.lanes++
	lanes := t.lanes
	t.mu.Unlock()
	if lanes >= pipeline.MaxLanes {
		return fmt.Errorf("%d more connections for the pages of one migration", lanes)
	}
	stop := context.AfterFunc(ctx, func() { _ = data.Close() })
	defer stop()
	select {
	case <-t.piped:
	case <-t.move.done:
		return nil
	case <-ctx.Done():
		return nil
	}
	err := t.receiveAllPages(data)
	if err != nil {
		_ = t.pipeline.Fail(fmt.Errorf("receive pages over one more connection: %w", err))
	}
	return err
}

func (t *target) receiveAllPages(data *stream.Session) error {
	var frame []byte
	for {
		section, err := data.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if section.Kind != precopy.KindPages {
			return fmt.Errorf("a section %.40q comes over a connection for pages", section.Kind)
		}
		if frame, err = t.receivePages(section, frame); err != nil {
			return err
		}
	}
}
