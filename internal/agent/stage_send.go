package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/layers"
	"github.com/godwit/godwit/internal/transfer/memory/precopy"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/stream"
)

// The sections of a stage's data connection beside those of the image and of pages, which are the
// same as a migration's. Each is answered by one of the same kind and name.
const (
	kindOffer = "offer" // content: api.Envelope
	kindTaken = "taken" // name: the migration that goes on with the copy
)

// maxStageOffer bounds an offer and its answer.
const maxStageOffer = 1 << 20

// offer connects to the target and asks it to take the copy. It returns what the target has not of the image.
func (g *stage) offer(ctx context.Context) (*api.Reservation, error) {
	problems, err := g.agent.engines.EngineFor(g.definition).Examine(ctx, g.definition.ID)
	if err != nil {
		return nil, err
	}
	chosen, err := g.agent.chooseVolumes(ctx, g.spec.Mode, g.definition, g.node, "")
	if err != nil {
		return nil, err
	}
	if err := refuse(append(problems, chosen.problems...)); err != nil {
		return nil, err
	}
	moving := g.definition
	moving.Volumes = chosen.volumes
	offer, err := g.agent.makeOffer(ctx, g.spec, moving, chosen.moved)
	if err != nil {
		return nil, err
	}
	offer.KeepSeconds = g.idle.Seconds()
	g.tell(func(told *migration.Stage) { told.ExpectedBytes = offer.MemoryBytes })
	g.most = precopy.MaxClaims(offer.GetMemoryBytes())
	if err := g.connect(ctx); err != nil {
		return nil, err
	}
	content, err := proto.Marshal(&api.Envelope{Offer: offer})
	if err == nil {
		err = g.out.Whole(kindOffer, "", content)
	}
	if err != nil {
		return nil, err
	}
	answer, err := g.expect(ctx, kindOffer, "")
	if err != nil {
		return nil, err
	}
	if err := g.measure(ctx); err != nil {
		return nil, fmt.Errorf("measure the link to %s: %w", g.node.Name, err)
	}
	return decodeStageAnswer(answer)
}

// decodeStageAnswer reads what the target says to an offer.
func decodeStageAnswer(content []byte) (*api.Reservation, error) {
	var envelope api.Envelope
	if err := proto.Unmarshal(content, &envelope); err != nil {
		return nil, fmt.Errorf("answer of the target: %w", err)
	}
	if envelope.Message == nil || envelope.Reservation == nil {
		return nil, errors.New("the target sent an answer of another kind")
	}
	message, err := decodeMessage(envelope.Message)
	if err != nil {
		return nil, err
	}
	if len(message.Problems) > 0 {
		return nil, &problemsError{message.Problems}
	}
	return envelope.Reservation, nil
}

func (g *stage) connect(ctx context.Context) error {
	sender, err := precopy.NewSender(g.sent)
	if err != nil {
		return err
	}
	conn, err := wire.Dial(ctx, g.agent.id, g.node.Address, g.node.Name)
	if err != nil {
		return err
	}
	options := g.agent.streamOptions()
	options.Limiter = &g.limiter
	data, err := stream.Open(ctx, conn, stream.Hello{Migration: g.spec.ID, Purpose: purposeStage}, options)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	data.Adapt(nil)
	g.tell(func(*migration.Stage) {
		g.data, g.sender, g.out = data, sender, stream.NewSections(data, nil)
		data.SetRate(g.settings.BandwidthLimit)
	})
	context.AfterFunc(g.ctx, func() { // what is being written waits no longer
		sender.Fail(context.Cause(g.ctx))
		_ = data.Abort(plain(context.Cause(g.ctx)))
	})
	go g.agent.guarded(func() { g.listen(data) })()
	go g.agent.guarded(func() {
		watchLink(g.ctx, data, g.agent.config.stagePatience(), func(err error) { g.cancel(g.lost(err)) })
	})()
	return nil
}

func (g *stage) lost(err error) error { return fmt.Errorf("connection to %s: %w", g.node.Name, err) }

// listen passes on what the target answers, and ends the stage when the connection ends.
func (g *stage) listen(data *stream.Session) {
	for {
		if err := guard.Do(func() error { return g.hearSection(data) }); err != nil {
			g.agent.logPanic(err)
			g.cancel(g.lost(err))
			return
		}
	}
}

func (g *stage) hearSection(data *stream.Session) error {
	section, err := data.Next()
	switch {
	case err != nil:
		return err
	case section.Kind == precopy.KindPlaced:
		return g.sender.HearPlaced(section)
	case section.Kind == precopy.KindClaims:
		return g.sender.HearClaims(section, g.most)
	default:
		return g.hearAnswer(section)
	}
}

// hearAnswer passes a section on to who waits for it.
func (g *stage) hearAnswer(section stream.Section) error {
	content, err := io.ReadAll(io.LimitReader(section, maxStageOffer+1))
	if err != nil {
		return err
	}
	if len(content) > maxStageOffer {
		return fmt.Errorf("an answer of more than %d bytes", maxStageOffer)
	}
	select {
	case g.answers <- stageAnswer{section.Kind, section.Name, content}:
		return nil
	case <-g.ctx.Done():
		return context.Cause(g.ctx)
	}
}

// stageAnswer is a section that the target has sent.
type stageAnswer struct {
	kind, name string
	content    []byte
}

// expect sends what is written and waits for an answer.
func (g *stage) expect(ctx context.Context, kind, name string) ([]byte, error) {
	if err := g.data.Flush(); err != nil {
		return nil, err
	}
	select {
	case answer := <-g.answers:
		if answer.kind != kind || answer.name != name {
			return nil, fmt.Errorf("%s answers %.40q %.40q to %s %s", g.node.Name, answer.kind, answer.name,
				kind, name)
		}
		return answer.content, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// bringImage has the target get what it has not of the image.
func (g *stage) bringImage(ctx context.Context, missing *api.Reservation) error {
	if !missing.GetMissingImage() && len(missing.GetMissingLayers()) == 0 {
		return nil
	}
	outgoing := &layers.Transfer{ID: g.spec.ID, Node: g.node.Name, Limiter: &g.limiter, Sent: g.sent}
	g.tell(func(*migration.Stage) { g.layers = outgoing })
	_, err := g.agent.layers.Bring(ctx, layers.Bringing{
		Node: g.node, Container: g.definition, Transfer: outgoing, Bandwidth: g.bandwidth(),
	})
	return err
}

// bandwidth is what the way to the other node lets through, as far as it may be used.
func (g *stage) bandwidth() float64 {
	link := g.describe().BandwidthBitsPerSecond
	g.mu.Lock()
	limit := g.settings.BandwidthLimit
	g.mu.Unlock()
	if limit > 0 && (link == 0 || limit < link) {
		return limit
	}
	return link
}

// measure chooses the codec by what the link carries.
func (g *stage) measure(ctx context.Context) error {
	link, err := g.data.Warm(ctx, stream.Budget{})
	if err != nil {
		return err
	}
	g.agent.peers.NoteLink(g.node.Name, link)
	g.tell(func(told *migration.Stage) { told.BandwidthBitsPerSecond = link.BandwidthBitsPerSecond })
	return g.data.SetCodec(stream.Choose(link.BandwidthBitsPerSecond, g.agent.cores).Codec)
}

// round sends what was written since the last one, and waits until the target has it.
func (g *stage) round(ctx context.Context) error {
	before, began := g.describe(), time.Now().UTC()
	stats, err := g.pages.Round(ctx, g.sender)
	if err != nil {
		return err
	}
	if stats.Tasks == 0 {
		return errStageGone
	}
	err = g.sender.AwaitPlaced(ctx, func(missing []memory.TaskMap) error {
		_, err := g.pages.Again(ctx, g.sender, missing)
		return err
	})
	if err != nil {
		return err
	}
	sent := g.describe().SentBytes
	g.tell(func(told *migration.Stage) {
		told.State, told.Fresh = migration.StageReady, began
		told.Rounds++
		told.MemoryBytes += int64(stats.Bytes())
		told.RoundBytes, told.DirtyingRate = sent-before.SentBytes, stats.DirtyingRate()
		told.RoundSeconds = time.Since(began).Seconds()
	})
	return nil
}

// take lets a migration go on from the copy. It waits for a round that is under way, which from now
// on may take as much of the link as the migration may. Nil: there is nothing to go on from.
func (g *stage) take(ctx context.Context, id string, limit float64, sent func(bytes int64)) (*takenCopy,
	error) {
	g.tell(func(*migration.Stage) {
		g.watcher = sent
		if g.data != nil {
			g.data.SetRate(limit)
		}
	})
	answer := make(chan *takenCopy)
	select {
	case g.claims <- stageClaim{ctx: ctx, migration: id, taken: answer}:
	case <-g.done:
		return nil, nil
	case <-ctx.Done():
		g.tell(func(*migration.Stage) { // it goes on as before
			g.watcher = nil
			if g.data != nil {
				g.data.SetRate(g.settings.BandwidthLimit)
			}
		})
		return nil, context.Cause(ctx)
	}
	select {
	case taken := <-answer:
		return taken, nil
	case <-g.done:
		return nil, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// handOver ends the stage, and gives its tracker to a migration when the target has given the copy
// to the same.
func (g *stage) handOver(ctx context.Context, claim stageClaim) error {
	if err := g.out.Whole(kindTaken, claim.migration, nil); err != nil {
		return err
	}
	if _, err := g.expect(ctx, kindTaken, claim.migration); err != nil {
		return err
	}
	select {
	case claim.taken <- &takenCopy{pages: g.pages, sender: g.sender, stage: g.describe()}:
		g.pages = nil
	case <-claim.ctx.Done():
	}
	return errStageTaken
}

// takeStaged takes over the staged copy at the target, or ends it: a container's memory has one tracker.
func (s *source) takeStaged(ctx context.Context) error {
	g := s.agent.stages.of(s.definition.ID)
	if g == nil {
		return nil
	}
	if g.node.Name != s.target.Name || !s.move.tracker.Spec.Mode.MemoryAhead() {
		return s.agent.stages.drop(ctx, s.definition.ID,
			fmt.Errorf("migration %s began without using the copy", s.id()))
	}
	staged, err := g.take(ctx, s.id(), s.settings.Get().BandwidthLimit, s.move.tracker.Transferred)
	if err != nil || staged == nil {
		return err
	}
	s.staged = staged
	s.move.tracker.Decided(fmt.Sprintf("goes on from the copy that was staged at %s, %d rounds, the last "+
		"%s before", s.target.Name, staged.stage.Rounds, time.Since(staged.stage.Fresh).Round(time.Second)))
	return nil
}

// dropStaged ends the tracking of a staged copy that was taken over and not used.
func (s *source) dropStaged() error {
	staged := s.staged
	s.staged = nil
	if staged == nil {
		return nil
	}
	return staged.pages.Close()
}
