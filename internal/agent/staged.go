package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/memory/precopy"
	"github.com/godwit/godwit/internal/wire/stream"
)

// maxStaged bounds the staged copies that one node may have here.
const maxStaged = 32

// stagedCopies are the copies that other nodes have staged here, of containers that may come.
type stagedCopies struct {
	mu  sync.Mutex
	all map[*stagedCopy]bool
}

func newStagedCopies() *stagedCopies { return &stagedCopies{all: map[*stagedCopy]bool{}} }

// stagedCopy is a copy that another node stages here, for as long as its connection stands.
type stagedCopy struct {
	agent      *Agent
	id, from   string
	definition engine.Definition
	limit      int64 // of its pages
	needs      int64 // the memory that a migration will need
	most       uint64
	residual   *residual // nil: the container left none here
	data       *stream.Session
	started    time.Time
	done       chan struct{} // closed when the copy is idle or gone

	mu     sync.Mutex
	keep   time.Duration // for how long the idle copy stays after the connection has ended; 0: not at all
	pages  *memory.Store // nil: not yet, or a migration has it
	rounds int
	fresh  time.Time
	next   time.Time // fresh after the round under way
}

var errCopyRemoved = errors.New("it was removed by a user of that node")

func (c *stagedCopies) add(added *stagedCopy) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	count := 0
	for have := range c.all {
		if have.from == added.from {
			count++
		}
	}
	if count >= maxStaged {
		return fmt.Errorf("%w: %s has staged %d containers here already", engine.ErrBusy, added.from, count)
	}
	c.all[added] = true
	return nil
}

func (c *stagedCopies) remove(one *stagedCopy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, one)
}

func (c *stagedCopies) list() []*stagedCopy {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]*stagedCopy, 0, len(c.all))
	for one := range c.all {
		list = append(list, one)
	}
	slices.SortFunc(list, func(x, y *stagedCopy) int { return x.started.Compare(y.started) })
	return list
}

// of returns the size of the staged copies of a container, and the reservations that were made for them.
func (c *stagedCopies) of(container string) (bytes int64, reserved []string) {
	for _, one := range c.list() {
		if one.definition.ID == container {
			bytes += one.bytes()
			reserved = append(reserved, one.id)
		}
	}
	return bytes, reserved
}

func (c *stagedCopy) bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pages == nil {
		return 0
	}
	return c.pages.Bytes()
}

func (c *stagedCopy) describe() migration.Stage {
	bytes := c.bytes()
	c.mu.Lock()
	defer c.mu.Unlock()
	told := migration.Stage{
		ID: c.id, Kind: migration.StagedCopy, Container: c.definition.Name, ContainerID: c.definition.ID,
		Source: c.from,
		Target: c.agent.self.Name, State: migration.StageLayers, Started: c.started, Fresh: c.fresh,
		Rounds:      c.rounds,
		MemoryBytes: bytes, SentBytes: int64(c.data.Counters().ReceivedWireBytes),
	}
	switch {
	case c.rounds > 0:
		told.State = migration.StageReady
	case c.pages != nil:
		told.State = migration.StageMemory
	}
	return told
}

// drop ends the copy, leaves no idle copy, and tells the other node why.
func (c *stagedCopy) drop(why error) {
	c.mu.Lock()
	c.keep = 0
	c.mu.Unlock()
	_ = c.data.Abort(plain(why))
}

// serveStaged takes the copy that another node stages over a connection, until the connection ends.
func (a *Agent) serveStaged(ctx context.Context, data *stream.Session, from, id string) error {
	c := &stagedCopy{agent: a, id: id, from: from, data: data, started: time.Now().UTC(),
		done: make(chan struct{})}
	defer close(c.done)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, func() { _ = data.Close() }) // nobody waits for a peer that says nothing
	go a.guarded(func() { watchLink(ctx, data, a.config.stagePatience(), func(error) { cancel() }) })()
	err := c.serve(ctx)
	c.residual.release()
	a.keepIdle(c)
	a.stagedCopies.remove(c)
	a.reservations.Release(c.id)
	err = errors.Join(err, c.close())
	if err != nil && ctx.Err() == nil {
		_ = data.Abort(plain(err))
	}
	return err
}

func (c *stagedCopy) close() error {
	if pages := c.takePages(); pages != nil {
		return pages.Close()
	}
	return nil
}

// takePages takes the pages away from the copy; nil: there are none (any more).
func (c *stagedCopy) takePages() *memory.Store {
	c.mu.Lock()
	defer c.mu.Unlock()
	pages := c.pages
	c.pages = nil
	return pages
}

func (c *stagedCopy) serve(ctx context.Context) error {
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
func (c *stagedCopy) greet(ctx context.Context) (*api.Reservation, error) {
	offer, err := c.offer()
	if err != nil {
		return nil, err
	}
	if err := c.agent.stagedCopies.add(c); err != nil {
		return nil, err
	}
	c.agent.reservations.Fill(c.id, c.from, c.needs, c.agent.freeForContainers())
	problems, err := c.agent.examineOffer(ctx, c.from, c.definition, offer)
	if err != nil {
		return nil, err
	}
	message, err := encodeMessage(migration.Message{Kind: migration.KindReserved, Problems: problems})
	if err != nil {
		return nil, err
	}
	missing, err := c.agent.missing(ctx, c.definition, problems)
	if err != nil {
		return nil, err
	}
	c.residual = c.agent.residuals.use(c.definition.ID)
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

func (c *stagedCopy) offer() (*api.Offer, error) {
	section, err := c.data.Next()
	if err != nil {
		return nil, err
	}
	offer, definition, err := readStageOffer(c.from, section)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.keep = seconds(offer.KeepSeconds)
	c.mu.Unlock()
	c.definition = definition
	c.limit, c.needs = stateLimit(offer), copiesAtTarget*offer.MemoryBytes
	c.most = precopy.MaxClaims(offer.GetMemoryBytes())
	return offer, nil
}

// readStageOffer reads and checks what another node offers to stage here.
func readStageOffer(from string, section stream.Section) (*api.Offer, engine.Definition, error) {
	var definition engine.Definition
	content, err := io.ReadAll(io.LimitReader(section, maxStageOffer+1))
	if err != nil {
		return nil, definition, err
	}
	var envelope api.Envelope
	if section.Kind != kindOffer || len(content) > maxStageOffer ||
		proto.Unmarshal(content, &envelope) != nil || envelope.Offer == nil {
		return nil, definition, fmt.Errorf("%w: a stage begins with an offer", errInvalid)
	}
	offer := envelope.Offer
	if err := errors.Join(checkProtocol(from, offer), checkSizes(offer),
		checkIdle(offer.KeepSeconds)); err != nil {
		return nil, definition, err
	}
	if err := json.Unmarshal(offer.DefinitionJson, &definition); err != nil {
		return nil, definition, fmt.Errorf("%w: definition of the container: %w", errInvalid, err)
	}
	if err := errors.Join(migration.CheckContainerID(definition.ID),
		migration.CheckName(definition.Name)); err != nil {
		return nil, definition, fmt.Errorf("%w: %w", errInvalid, err)
	}
	return offer, definition, nil
}

// layers waits until all layers of the image are here: the other node has this one fetch them, see Fetch.
func (c *stagedCopy) layers() error {
	section, err := c.data.Next()
	if err == nil && section.Kind != kindStaged {
		err = fmt.Errorf("a section %.40q comes before the layers are here", section.Kind)
	}
	return err
}

// receive takes rounds until the other node ends the stage, or a migration takes the copy over.
func (c *stagedCopy) receive(pages *memory.Store) error {
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

func (c *stagedCopy) receiver(key io.Reader, pages *memory.Store) (*pipeline.Receiver, error) {
	incoming := precopy.Incoming{Data: c.data, Pages: pages, Barrier: c.round, Announced: c.residual != nil,
		Most: c.most}
	if c.residual != nil {
		incoming.Residual = c.residual.pages
	}
	receiver, _, err := incoming.Receiver(key)
	return receiver, err
}

// round is called when all of a round is in place.
func (c *stagedCopy) round(number uint64, missing []memory.TaskMap) error {
	c.mu.Lock()
	if len(missing) == 0 {
		c.rounds++
		c.fresh, c.next = c.next, time.Now().UTC()
	}
	c.mu.Unlock()
	// Memory that is in use already need not be reserved any more.
	c.agent.reservations.Fill(c.id, c.from, max(0, c.needs-c.bytes()), c.agent.freeForContainers())
	return precopy.TellPlaced(c.data, number, missing)
}

// handOver gives the copy to a migration.
func (c *stagedCopy) handOver(id string) error {
	m, err := c.agent.moves.find(id)
	if err != nil {
		return err
	}
	spec := m.tracker.Spec
	work, ok := m.work().(*target)
	if !ok || spec.Source != c.from || spec.Container != c.definition.ID || m.ended() {
		return fmt.Errorf("migration %.40q does not bring %s from %s here", id, c.definition.Name, c.from)
	}
	pages := c.takePages()
	if pages == nil {
		return errors.New("the copy no longer exists")
	}
	if err := work.takeStaged(pages); err != nil {
		return errors.Join(err, pages.Close())
	}
	if err := c.answer(kindTaken, id, nil); err != nil {
		return err
	}
	_, err = c.data.Next() // the other node ends the stage when it has the answer
	c.agent.log.Debug("stage handed over", "migration", id, "ended", err)
	return nil
}

func (c *stagedCopy) answer(kind, name string, content []byte) error {
	out := stream.NewSections(c.data, nil)
	if err := out.Whole(kind, name, content); err != nil {
		return err
	}
	return c.data.Flush()
}
