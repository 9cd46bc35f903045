package precopy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/wire/stream"
)

// breaking is a connection that breaks after so many bytes have been written to it.
type breaking struct {
	net.Conn

	mu    sync.Mutex
	left  int // negative: it never breaks
	wrote int
}

func (b *breaking) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(p)
	if b.left >= 0 && n > b.left {
		n = b.left
	}
	n, err := b.Conn.Write(p[:n])
	b.wrote += n
	if b.left >= 0 {
		b.left -= n
	}
	if err == nil && n < len(p) {
		err = errors.Join(io.ErrClosedPipe, b.Conn.Close())
	}
	return n, err
}

// written is how many bytes have been.
func (b *breaking) written() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wrote
}

// sessions makes a data connection of a pipe.
func sessions(t *testing.T, near, far net.Conn) (source, target *stream.Session, err error) {
	t.Helper()
	answered := make(chan error, 1)
	go func() {
		var err error
		target, _, err = stream.Answer(t.Context(), far, func(stream.Hello) error { return nil },
			stream.Options{})
		answered <- err
	}()
	source, err = stream.Open(t.Context(), near,
		stream.Hello{Migration: "0123456789abcdef", Purpose: PurposePages}, stream.Options{Workers: 1})
	if err != nil {
		_ = near.Close()
	}
	err = errors.Join(err, <-answered)
	t.Cleanup(func() {
		for _, one := range []*stream.Session{source, target} {
			if one != nil {
				_ = one.Close()
			}
		}
	})
	return source, target, err
}

// content are pages that differ from each other, and do not compress well.
func content(pages int, seed byte) []byte {
	size := memory.PageSize()
	data, x := make([]byte, pages*size), uint32(seed)+1
	for i := range data {
		x = x*1664525 + 1013904223
		data[i] = byte(x >> 24)
	}
	return data
}

// ends are both ends of a transfer in these tests.
type ends struct {
	sender   *Sender
	receiver *Receiver
	store    *memory.Store
}

func newEnds(t *testing.T) *ends {
	t.Helper()
	sender, err := NewSender(func(int64) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sender.Close(errors.New("the test is over")) })
	receiver := NewReceiver()
	store, err := receiver.Open(1 << 24)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = receiver.Discard() })
	return &ends{sender, receiver, store}
}

// hear passes on what the target says, until the connection ends.
func (e *ends) hear(data *stream.Session) {
	for {
		section, err := data.Next()
		if err == nil && section.Kind == KindPlaced {
			err = e.sender.HearPlaced(section)
		} else if err == nil && section.Kind == KindClaims {
			err = e.sender.HearClaims(section, 1000)
		}
		if err != nil {
			e.sender.Close(err)
			return
		}
	}
}

// receive takes sections until the map has come.
func (e *ends) receive(ctx context.Context, data *stream.Session, incoming Incoming) error {
	incoming.Data = data
	incoming.Barrier = func(number uint64, missing []memory.TaskMap) error {
		return TellPlaced(data, number, missing)
	}
	var frame []byte
	for {
		section, err := data.Next()
		if err != nil {
			return err
		}
		switch section.Kind {
		case KindKey:
			err = e.receiver.Key(section, incoming)
		case KindPages:
			frame, err = e.receiver.Frame(section, frame)
		case KindRemote:
			err = e.receiver.Remote(section)
		case KindMap:
			return e.receiver.Map(ctx, section)
		default:
			err = fmt.Errorf("a section %q", section.Kind)
		}
		if err != nil {
			return err
		}
	}
}

// sendMap tells which pages there must be.
func (e *ends) sendMap(ctx context.Context, out *stream.Sections, remote, all []memory.TaskMap) error {
	var late, there bytes.Buffer
	if err := errors.Join(memory.EncodeMap(&late, remote), memory.EncodeMap(&there, all)); err != nil {
		return err
	}
	if err := out.Whole(KindRemote, "", late.Bytes()); err != nil {
		return err
	}
	number, err := e.sender.Barrier(ctx)
	if err != nil {
		return err
	}
	if err := out.Whole(KindMap, strconv.FormatUint(number, 10), there.Bytes()); err != nil {
		return err
	}
	return out.Flush()
}

func mapOf(task memory.Task, start uint64, pages int) []memory.TaskMap {
	return []memory.TaskMap{{Task: task, Areas: []memory.Area{{Start: start, Pages: uint64(pages)}}}}
}

// holds compares pages of a store.
func holds(store *memory.Store, run memory.Run, data []byte) error {
	size := memory.PageSize()
	page := make([]byte, size)
	for i := range int(run.Pages) {
		there, err := store.ReadPage(run.Task, run.Address+uint64(i*size), page)
		if err != nil || !there || !bytes.Equal(page, data[i*size:(i+1)*size]) {
			return fmt.Errorf("page %d: there %t, %w", i, there, errors.Join(err, errors.ErrUnsupported))
		}
	}
	return nil
}

// soon bounds how long anything may take in these tests.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
