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
	"github.com/godwit/godwit/internal/wire/stream"
)

// maxBases bounds the copies that one node may keep here.
const maxBases = 32

// bases are the copies that other nodes have made here of containers that may come.
type bases struct {
	mu  sync.Mutex
	all map[*base]bool
}

func newBases() *bases { return &bases{all: map[*base]bool{}} }

// base is a copy that another node makes here, for as long as its connection stands.
type base struct {
	agent      *Agent
	id, from   string
	definition engine.Definition
	limit      int64 // of its pages
	needs      int64 // what a migration will take
	most       uint64
	footprint  *footprint // what the container left here when it went; nil: nothing
	data       *stream.Session
	started    time.Time
	done       chan struct{} // closed when nothing of it is left, or it is parked

	mu     sync.Mutex
	keep   time.Duration // for how long it is parked when its connection has ended; 0: not
	pages  *memory.Store // nil: not yet, or a migration has it
	rounds int
	fresh  time.Time
	next   time.Time // of what comes now
}

var errBaseRemoved = errors.New("it was removed by a user of that node")

func (b *bases) add(added *base) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	count := 0
	for have := range b.all {
		if have.from == added.from {
			count++
		}
	}
	if count >= maxBases {
		return fmt.Errorf("%w: %s has staged %d containers here already", engine.ErrBusy, added.from, count)
	}
	b.all[added] = true
	return nil
}

func (b *bases) remove(one *base) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.all, one)
}

func (b *bases) list() []*base {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := make([]*base, 0, len(b.all))
	for one := range b.all {
		list = append(list, one)
	}
	slices.SortFunc(list, func(x, y *base) int { return x.started.Compare(y.started) })
	return list
}

// of is what there is of a container already: how much, and the reservations that were made for it.
func (b *bases) of(container string) (bytes int64, reserved []string) {
	for _, one := range b.list() {
		if one.definition.ID == container {
			bytes += one.bytes()
			reserved = append(reserved, one.id)
		}
	}
	return bytes, reserved
}

func (b *base) bytes() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pages == nil {
		return 0
	}
	return b.pages.Bytes()
}

func (b *base) describe() migration.Stage {
	bytes := b.bytes()
	b.mu.Lock()
	defer b.mu.Unlock()
	told := migration.Stage{
		ID: b.id, Kind: migration.BaseCopy, Container: b.definition.Name, ContainerID: b.definition.ID, Source: b.from,
		Target: b.agent.self.Name, State: migration.StageLayers, Started: b.started, Fresh: b.fresh, Rounds: b.rounds,
		MemoryBytes: bytes, SentBytes: int64(b.data.Counters().ReceivedWireBytes),
	}
	switch {
	case b.rounds > 0:
		told.State = migration.StageReady
	case b.pages != nil:
		told.State = migration.StageMemory
	}
	return told
}

// drop ends it, and tells the other node why. It is not parked.
func (b *base) drop(why error) {
	b.mu.Lock()
	b.keep = 0
	b.mu.Unlock()
	_ = b.data.Abort(plain(why))
}

// serveBase takes a copy that another node makes over a connection, until that ends.
func (a *Agent) serveBase(ctx context.Context, data *stream.Session, from, id string) error {
	b := &base{agent: a, id: id, from: from, data: data, started: time.Now().UTC(), done: make(chan struct{})}
	defer close(b.done)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, func() { _ = data.Close() }) // nobody waits for a peer that says nothing
	go a.guarded(func() { watchLink(ctx, data, a.config.stagePatience(), func(error) { cancel() }) })()
	err := b.serve(ctx)
	b.footprint.release()
	a.park(b)
	a.bases.remove(b)
	a.reservations.Release(b.id)
	err = errors.Join(err, b.close())
	if err != nil && ctx.Err() == nil {
		_ = data.Abort(plain(err))
	}
	return err
}

func (b *base) close() error {
	if pages := b.takePages(); pages != nil {
		return pages.Close()
	}
	return nil
}

// takePages takes what is here away from it; nil: there is nothing (any more).
func (b *base) takePages() *memory.Store {
	b.mu.Lock()
	defer b.mu.Unlock()
	pages := b.pages
	b.pages = nil
	return pages
}

func (b *base) serve(ctx context.Context) error {
	missing, err := b.greet(ctx)
	if err != nil || missing == nil {
		return err
	}
	if err := b.layers(); err != nil {
		return fmt.Errorf("stage: %w", err)
	}
	pages, err := memory.NewStore(b.limit)
	if err != nil {
		return err
	}
	b.mu.Lock()
	b.pages = pages
	b.mu.Unlock()
	err = b.receive(pages)
	if errors.Is(err, memory.ErrStoreFull) {
		return fmt.Errorf("%s has outgrown the room that was reserved for its copy: stage it again: %w", b.definition.Name, err)
	}
	return err
}

// greet takes the offer and answers it. Nil without an error: there is something against it, and
// that was said.
func (b *base) greet(ctx context.Context) (*api.Reservation, error) {
	offer, err := b.offer()
	if err != nil {
		return nil, err
	}
	if err := b.agent.bases.add(b); err != nil {
		return nil, err
	}
	b.agent.reservations.Fill(b.id, b.from, b.needs, b.agent.freeForContainers())
	problems, err := b.agent.examineOffer(ctx, b.from, b.definition, offer)
	if err != nil {
		return nil, err
	}
	message, err := encodeMessage(migration.Message{Kind: migration.KindReserved, Problems: problems})
	if err != nil {
		return nil, err
	}
	missing, err := b.agent.missing(ctx, b.definition, problems)
	if err != nil {
		return nil, err
	}
	b.footprint = b.agent.footprints.use(b.definition.ID)
	missing.Footprint = b.footprint != nil
	content, err := proto.Marshal(&api.Envelope{Message: message, Reservation: missing})
	if err == nil {
		err = b.answer(kindOffer, "", content)
	}
	if err != nil || len(problems) > 0 {
		return nil, err
	}
	return missing, nil
}

func (b *base) offer() (*api.Offer, error) {
	section, err := b.data.Next()
	if err != nil {
		return nil, err
	}
	offer, definition, err := readStageOffer(b.from, section)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	b.keep = seconds(offer.KeepSeconds)
	b.mu.Unlock()
	b.definition = definition
	b.limit, b.needs, b.most = stateLimit(offer), copiesAtTarget*offer.MemoryBytes, maxClaims(offer)
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
	if section.Kind != kindOffer || len(content) > maxStageOffer || proto.Unmarshal(content, &envelope) != nil || envelope.Offer == nil {
		return nil, definition, fmt.Errorf("%w: a stage begins with an offer", errInvalid)
	}
	offer := envelope.Offer
	if err := errors.Join(checkProtocol(from, offer), checkSizes(offer), checkParked(offer.KeepSeconds)); err != nil {
		return nil, definition, err
	}
	if err := json.Unmarshal(offer.DefinitionJson, &definition); err != nil {
		return nil, definition, fmt.Errorf("%w: definition of the container: %w", errInvalid, err)
	}
	if err := errors.Join(migration.CheckContainerID(definition.ID), migration.CheckName(definition.Name)); err != nil {
		return nil, definition, fmt.Errorf("%w: %w", errInvalid, err)
	}
	return offer, definition, nil
}

// layers waits until what is missing of the image is here: the other node had it brought, see Fetch.
func (b *base) layers() error {
	section, err := b.data.Next()
	if err == nil && section.Kind != kindStaged {
		err = fmt.Errorf("a section %.40q comes before the layers are here", section.Kind)
	}
	return err
}

// receive takes rounds until the other node ends it, or a migration goes on with what is here.
func (b *base) receive(pages *memory.Store) error {
	var receiver *pipeline.Receiver
	var frame []byte
	b.next = time.Now().UTC()
	for {
		section, err := b.data.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch section.Kind {
		case kindKey:
			receiver, err = b.receiver(section, pages)
		case kindPages:
			frame, err = receiveFrame(section, frame, receiver)
		case kindTaken:
			return b.handOver(section.Name)
		default:
			err = fmt.Errorf("a section %.40q comes in a stage", section.Kind)
		}
		if err != nil {
			return err
		}
	}
}

func (b *base) receiver(key io.Reader, pages *memory.Store) (*pipeline.Receiver, error) {
	incoming := incomingPages{data: b.data, pages: pages, barrier: b.round, announced: b.footprint != nil, most: b.most}
	if b.footprint != nil {
		incoming.footprint = b.footprint.pages
	}
	receiver, _, err := incoming.receiver(key)
	return receiver, err
}

// round is called when all of a round is in place.
func (b *base) round(number uint64, missing []memory.TaskMap) error {
	b.mu.Lock()
	if len(missing) == 0 {
		b.rounds++
		b.fresh, b.next = b.next, time.Now().UTC()
	}
	b.mu.Unlock()
	// What is here already is not to be reserved any more.
	b.agent.reservations.Fill(b.id, b.from, max(0, b.needs-b.bytes()), b.agent.freeForContainers())
	return tellPlaced(b.data, number, missing)
}

// handOver gives what is here to a migration.
func (b *base) handOver(id string) error {
	m, err := b.agent.moves.find(id)
	if err != nil {
		return err
	}
	spec := m.tracker.spec
	work, ok := m.work().(*target)
	if !ok || spec.Source != b.from || spec.Container != b.definition.ID || m.ended() {
		return fmt.Errorf("migration %.40q does not bring %s from %s here", id, b.definition.Name, b.from)
	}
	pages := b.takePages()
	if pages == nil {
		return errors.New("there is no copy any more")
	}
	if err := work.takeBase(pages); err != nil {
		return errors.Join(err, pages.Close())
	}
	if err := b.answer(kindTaken, id, nil); err != nil {
		return err
	}
	_, err = b.data.Next() // The other node ends it, when it has heard.
	b.agent.log.Debug("stage handed over", "migration", id, "ended", err)
	return nil
}

func (b *base) answer(kind, name string, content []byte) error {
	out := stream.NewSections(b.data, nil)
	if err := out.Whole(kind, name, content); err != nil {
		return err
	}
	return b.data.Flush()
}
