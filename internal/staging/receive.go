package staging

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/memory/precopy"
	"github.com/godwit/godwit/internal/wire/stream"
)

// Serve takes the copy that another node stages over a connection, until the connection ends.
func (c *Copies) Serve(ctx context.Context, data *stream.Session, from, id string) error {
	one := &Copy{owner: c, id: id, from: from, data: data, started: time.Now().UTC(),
		done: make(chan struct{})}
	defer close(one.done)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, func() { _ = data.Close() }) // nobody waits for a peer that says nothing
	go guard.Logged(c.log, func() { watchLink(ctx, data, c.patience, func(error) { cancel() }) })()
	err := one.serve(ctx)
	one.residual.Release()
	c.keepIdle(one)
	c.remove(one)
	c.reservations.Release(one.id)
	err = errors.Join(err, one.close())
	if err != nil && ctx.Err() == nil {
		_ = data.Abort(api.Plain(err))
	}
	return err
}

func (c *Copy) close() error {
	if pages := c.takePages(); pages != nil {
		return pages.Close()
	}
	return nil
}

// takePages takes the pages away from the copy; nil: there are none (any more).
func (c *Copy) takePages() *memory.Store {
	c.mu.Lock()
	defer c.mu.Unlock()
	pages := c.pages
	c.pages = nil
	return pages
}

func (c *Copy) serve(ctx context.Context) error {
	missing, err := c.greet(ctx)
	if err != nil || missing == nil {
		return err
	}
	if err := c.layers(); err != nil {
		return fmt.Errorf("stage: %w", err)
	}
	pages, err := memory.NewStore(c.limit)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.pages = pages
	c.mu.Unlock()
	err = c.receive(pages)
	if errors.Is(err, memory.ErrStoreFull) {
		return fmt.Errorf("%s has outgrown the room that was reserved for its copy: stage it again: %w",
			c.definition.Name, err)
	}
	return err
}

// greet reads the offer and answers it. Nil without an error: the offer has problems, and the answer
// names them.
func (c *Copy) greet(ctx context.Context) (*api.Reservation, error) {
	offer, err := c.offer()
	if err != nil {
		return nil, err
	}
	if err := c.owner.add(c); err != nil {
		return nil, err
	}
	c.owner.reservations.Fill(c.id, c.from, c.needs, c.owner.target.Free())
	problems, err := c.owner.target.Examine(ctx, c.from, c.definition, offer)
	if err != nil {
		return nil, err
	}
	message, err := envelopes.Encode(migration.Message{Kind: migration.KindReserved, Problems: problems})
	if err != nil {
		return nil, err
	}
	missing, err := c.owner.target.Missing(ctx, c.definition, problems)
	if err != nil {
		return nil, err
	}
	c.residual = c.owner.residuals.Use(c.definition.ID)
	missing.Footprint = c.residual != nil
	content, err := proto.Marshal(&api.Envelope{Message: message, Reservation: missing})
	if err == nil {
		err = c.answer(kindOffer, "", content)
	}
	if err != nil || len(problems) > 0 {
		return nil, err
	}
	return missing, nil
}

func (c *Copy) offer() (*api.Offer, error) {
	section, err := c.data.Next()
	if err != nil {
		return nil, err
	}
	offer, definition, err := readOffer(c.from, section)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.keep = time.Duration(offer.KeepSeconds * float64(time.Second))
	c.mu.Unlock()
	c.definition = definition
	c.limit, c.most = envelopes.MemoryLimit(offer), precopy.MaxClaims(offer.MemoryBytes)
	c.needs = envelopes.CopiesAtTarget * offer.MemoryBytes
	return offer, nil
}

// readOffer reads and checks what another node offers to stage here.
func readOffer(from string, section stream.Section) (*api.Offer, engine.Definition, error) {
	var definition engine.Definition
	content, err := io.ReadAll(io.LimitReader(section, maxOffer+1))
	if err != nil {
		return nil, definition, err
	}
	var envelope api.Envelope
	if section.Kind != kindOffer || len(content) > maxOffer ||
		proto.Unmarshal(content, &envelope) != nil || envelope.Offer == nil {
		return nil, definition, fmt.Errorf("%w: a stage begins with an offer", api.ErrInvalid)
	}
	offer := envelope.Offer
	if err := errors.Join(envelopes.CheckProtocol(from, offer), envelopes.CheckSizes(offer),
		CheckIdle(offer.KeepSeconds)); err != nil {
		return nil, definition, err
	}
	definition, err = envelopes.Definition(offer)
	return offer, definition, err
}

// layers waits until all layers of the image are here: the other node has this one fetch them, see Fetch.
func (c *Copy) layers() error {
	section, err := c.data.Next()
	if err == nil && section.Kind != kindStaged {
		err = fmt.Errorf("a section %.40q comes before the layers are here", section.Kind)
	}
	return err
}

// receive takes rounds until the other node ends the stage, or a migration takes the copy over.
func (c *Copy) receive(pages *memory.Store) error {
	var receiver *pipeline.Receiver
	var frame []byte
	c.next = time.Now().UTC()
	for {
		section, err := c.data.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch section.Kind {
		case precopy.KindKey:
			receiver, err = c.receiver(section, pages)
		case precopy.KindPages:
			frame, err = precopy.ReceiveFrame(section, frame, receiver)
		case kindTaken:
			return c.handOver(section.Name)
		default:
			err = fmt.Errorf("a section %.40q comes in a stage", section.Kind)
		}
		if err != nil {
			return err
		}
	}
}

func (c *Copy) receiver(key io.Reader, pages *memory.Store) (*pipeline.Receiver, error) {
	incoming := precopy.Incoming{Data: c.data, Pages: pages, Barrier: c.round, Announced: c.residual != nil,
		Most: c.most}
	if c.residual != nil {
		incoming.Residual = c.residual.Pages()
	}
	receiver, _, err := incoming.Receiver(key)
	return receiver, err
}

// round is called when all of a round is in place.
func (c *Copy) round(number uint64, missing []memory.TaskMap) error {
	c.mu.Lock()
	if len(missing) == 0 {
		c.rounds++
		c.fresh, c.next = c.next, time.Now().UTC()
	}
	c.mu.Unlock()
	// Memory that is in use already need not be reserved any more.
	c.owner.reservations.Fill(c.id, c.from, max(0, c.needs-c.bytes()), c.owner.target.Free())
	return precopy.TellPlaced(c.data, number, missing)
}

// handOver gives the copy to a migration.
func (c *Copy) handOver(id string) error {
	take, err := c.owner.target.Migration(id, c.from, c.definition)
	if err != nil {
		return err
	}
	pages := c.takePages()
	if pages == nil {
		return errors.New("the copy no longer exists")
	}
	if err := take(pages); err != nil {
		return errors.Join(err, pages.Close())
	}
	if err := c.answer(kindTaken, id, nil); err != nil {
		return err
	}
	_, err = c.data.Next() // the other node ends the stage when it has the answer
	c.owner.log.Debug("stage handed over", "migration", id, "ended", err)
	return nil
}

func (c *Copy) answer(kind, name string, content []byte) error {
	out := stream.NewSections(c.data, nil)
	if err := out.Whole(kind, name, content); err != nil {
		return err
	}
	return c.data.Flush()
}
