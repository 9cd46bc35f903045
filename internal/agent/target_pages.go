package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
	"github.com/godwit/godwit/internal/wire/stream"
)

var (
	errNoPages = errors.New("memory arrived separately, but is part of the execution state in this mode")
	errNoKey   = errors.New("pages arrived before the key that hashes them")
)

// takeKey begins to receive pages.
func (t *target) takeKey(section io.Reader) error {
	if t.pages == nil {
		return errNoPages
	}
	if t.pipeline != nil {
		return errors.New("a second key for the pages of one migration")
	}
	incoming := incomingPages{data: t.data, pages: t.pages, announced: t.residual != nil,
		most: maxClaims(t.offer)}
	incoming.barrier = func(number uint64, missing []memory.TaskMap) error {
		t.telling.Lock()
		defer t.telling.Unlock()
		return tellPlaced(t.data, number, missing)
	}
	if t.residual != nil && !t.staging { // of what was staged all is here already
		incoming.residual = t.residual.pages
	}
	receiver, key, err := incoming.receiver(section)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pipeline, t.key = receiver, key
	close(t.piped)
	return nil
}

// incomingPages is what a receiver of pages is made of.
type incomingPages struct {
	data      *stream.Session // over which the source hears of them
	pages     *memory.Store
	barrier   func(number uint64, missing []memory.TaskMap) error
	announced bool             // the source was told of a residual copy, and may wait for its claims
	residual  *memory.Residual // that the source may refer to; nil: none
	most      uint64           // pages of it
}

// receiver makes it with the key that comes in a section.
func (i incomingPages) receiver(section io.Reader) (*pipeline.Receiver, pipeline.Key, error) {
	config := pipeline.ReceiverConfig{Pages: i.pages, Barrier: i.barrier}
	if _, err := io.ReadFull(section, config.Key[:]); err != nil {
		return nil, config.Key, fmt.Errorf("key of the pages: %w", err)
	}
	if i.residual != nil {
		config.Base = i.residual
	}
	if i.announced {
		if err := sendClaims(i.data, config.Key, i.residual, i.most); err != nil {
			return nil, config.Key, err
		}
	}
	receiver, err := pipeline.NewReceiver(config)
	return receiver, config.Key, err
}

// receivePages takes a frame. How many pages come is bounded by what the store takes, however often
// they are sent.
func (t *target) receivePages(section io.Reader, buffer []byte) ([]byte, error) {
	return receiveFrame(section, buffer, t.pipeline)
}

func receiveFrame(section io.Reader, buffer []byte, receiver *pipeline.Receiver) ([]byte, error) {
	if receiver == nil {
		return buffer, errNoKey
	}
	frame, err := pipeline.ReadFrame(section, buffer)
	if err != nil {
		return frame, err
	}
	return frame, receiver.Frame(frame)
}

// tellPlaced tells the source that all before a barrier is in place. That it cannot be told is no
// error: the loss of the connection is noticed elsewhere, and in the freeze nobody waits for it.
func tellPlaced(data *stream.Session, number uint64, missing []memory.TaskMap) error {
	var content bytes.Buffer
	if err := memory.EncodeMap(&content, missing); err != nil {
		return err
	}
	if data.Begin(kindPlaced, strconv.FormatUint(number, 10)) != nil {
		return nil
	}
	_, err := data.Write(content.Bytes())
	if err == nil && data.End() == nil {
		_ = data.Push()
	}
	return nil
}

// keepPages takes the map of the pages that there must be, when all of them have come.
func (t *target) keepPages(ctx context.Context, section stream.Section) error {
	if t.pipeline == nil {
		return errNoKey
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
		if section.Kind != kindPages {
			return fmt.Errorf("a section %.40q comes over a connection for pages", section.Kind)
		}
		if frame, err = t.receivePages(section, frame); err != nil {
			return err
		}
	}
}
