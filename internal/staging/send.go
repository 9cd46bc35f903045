package staging

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/layers"
	"github.com/godwit/godwit/internal/transfer/memory/precopy"
	"github.com/godwit/godwit/internal/wire/stream"
)

// offer connects to the target and asks it to take the copy. It returns what the target has not of the image.
func (g *Stage) offer(ctx context.Context) (*api.Reservation, error) {
	offer, err := g.owner.containers.Offer(ctx, g.spec, g.definition, g.node)
	if err != nil {
		return nil, err
	}
	offer.KeepSeconds = g.idle.Seconds()
	g.tell(func(told *migration.Stage) { told.ExpectedBytes = offer.MemoryBytes })
	g.most = precopy.MaxClaims(offer.MemoryBytes)
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
	missing, err := decodeAnswer(answer)
	if err != nil {
		return nil, err // a target that refuses ends the connection, so the link cannot be measured
	}
	if err := g.measure(ctx); err != nil {
		return nil, fmt.Errorf("measure the link to %s: %w", g.node.Name, err)
	}
	return missing, nil
}

// decodeAnswer reads what the target says to an offer.
func decodeAnswer(content []byte) (*api.Reservation, error) {
	var envelope api.Envelope
	if err := proto.Unmarshal(content, &envelope); err != nil {
		return nil, fmt.Errorf("answer of the target: %w", err)
	}
	if envelope.Message == nil || envelope.Reservation == nil {
		return nil, errors.New("the target sent an answer of another kind")
	}
	message, err := envelopes.Decode(envelope.Message)
	if err != nil {
		return nil, err
	}
	if len(message.Problems) > 0 {
		return nil, &migration.Refusal{Problems: message.Problems}
	}
	return envelope.Reservation, nil
}

func (g *Stage) connect(ctx context.Context) error {
	sender, err := precopy.NewSender(g.sent)
	if err != nil {
		return err
	}
	data, err := g.owner.links.Dial(ctx, g.node, g.spec.ID, &g.limiter)
	if err != nil {
		return err
	}
	data.Adapt(nil)
	g.tell(func(*migration.Stage) {
		g.data, g.sender, g.out = data, sender, stream.NewSections(data, nil)
		data.SetRate(g.settings.BandwidthLimit)
	})
	context.AfterFunc(g.ctx, func() { // what is being written waits no longer
		sender.Fail(context.Cause(g.ctx))
		_ = data.Abort(api.Plain(context.Cause(g.ctx)))
	})
	go guard.Logged(g.owner.log, func() { g.listen(data) })()
	go guard.Logged(g.owner.log, func() {
		watchLink(g.ctx, data, g.owner.patience, func(err error) { g.cancel(g.lost(err)) })
	})()
	return nil
}

func (g *Stage) lost(err error) error { return fmt.Errorf("connection to %s: %w", g.node.Name, err) }

// listen passes on what the target answers, and ends the stage when the connection ends.
func (g *Stage) listen(data *stream.Session) {
	for {
		if err := guard.Do(func() error { return g.hearSection(data) }); err != nil {
			guard.LogPanic(g.owner.log, err)
			g.cancel(g.lost(err))
			return
		}
	}
}

func (g *Stage) hearSection(data *stream.Session) error {
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
func (g *Stage) hearAnswer(section stream.Section) error {
	content, err := io.ReadAll(io.LimitReader(section, maxOffer+1))
	if err != nil {
		return err
	}
	if len(content) > maxOffer {
		return fmt.Errorf("an answer of more than %d bytes", maxOffer)
	}
	select {
	case g.answers <- answer{section.Kind, section.Name, content}:
		return nil
	case <-g.ctx.Done():
		return context.Cause(g.ctx)
	}
}

// answer is a section that the target has sent.
type answer struct {
	kind, name string
	content    []byte
}

// expect sends what is written and waits for an answer.
func (g *Stage) expect(ctx context.Context, kind, name string) ([]byte, error) {
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
func (g *Stage) bringImage(ctx context.Context, missing *api.Reservation) error {
	if !missing.GetMissingImage() && len(missing.GetMissingLayers()) == 0 {
		return nil
	}
	outgoing := &layers.Transfer{ID: g.spec.ID, Node: g.node.Name, Limiter: &g.limiter, Sent: g.sent}
	g.tell(func(*migration.Stage) { g.layers = outgoing })
	_, err := g.owner.bringer.Bring(ctx, layers.Bringing{
		Node: g.node, Container: g.definition, Transfer: outgoing, Bandwidth: g.bandwidth(),
	})
	return err
}

// bandwidth is what the way to the other node lets through, as far as it may be used.
func (g *Stage) bandwidth() float64 {
	link := g.Describe().BandwidthBitsPerSecond
	g.mu.Lock()
	limit := g.settings.BandwidthLimit
	g.mu.Unlock()
	if limit > 0 && (link == 0 || limit < link) {
		return limit
	}
	return link
}

// measure chooses the codec by what the link carries.
func (g *Stage) measure(ctx context.Context) error {
	link, err := g.data.Warm(ctx, stream.Budget{})
	if err != nil {
		return err
	}
	g.owner.links.NoteLink(g.node.Name, link)
	g.tell(func(told *migration.Stage) { told.BandwidthBitsPerSecond = link.BandwidthBitsPerSecond })
	return g.data.SetCodec(stream.Choose(link.BandwidthBitsPerSecond, g.owner.cores).Codec)
}

// round sends what was written since the last one, and waits until the target has it.
func (g *Stage) round(ctx context.Context) error {
	before, began := g.Describe(), time.Now().UTC()
	stats, err := g.pages.Round(ctx, g.sender)
	if err != nil {
		return err
	}
	if stats.Tasks == 0 {
		return ErrGone
	}
	err = g.sender.AwaitPlaced(ctx, func(missing []memory.TaskMap) error {
		_, err := g.pages.Again(ctx, g.sender, missing)
		return err
	})
	if err != nil {
		return err
	}
	sent := g.Describe().SentBytes
	g.tell(func(told *migration.Stage) {
		told.State, told.Fresh = migration.StageReady, began
		told.Rounds++
		told.MemoryBytes += int64(stats.Bytes())
		told.RoundBytes, told.DirtyingRate = sent-before.SentBytes, stats.DirtyingRate()
		told.RoundSeconds = time.Since(began).Seconds()
	})
	return nil
}

// Take lets a migration go on from the copy. It waits for a round that is under way, which from now
// on may take as much of the link as the migration may. Nil: there is nothing to go on from.
func (g *Stage) Take(ctx context.Context, id string, limit float64, sent func(bytes int64)) (*Taken,
	error) {
	g.tell(func(*migration.Stage) {
		g.watcher = sent
		if g.data != nil {
			g.data.SetRate(limit)
		}
	})
	answer := make(chan *Taken)
	select {
	case g.claims <- claim{ctx: ctx, migration: id, taken: answer}:
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
func (g *Stage) handOver(ctx context.Context, claim claim) error {
	if err := g.out.Whole(kindTaken, claim.migration, nil); err != nil {
		return err
	}
	if _, err := g.expect(ctx, kindTaken, claim.migration); err != nil {
		return err
	}
	pages, _ := g.pages.(*memory.Source)
	select {
	case claim.taken <- &Taken{Pages: pages, Sender: g.sender, Stage: g.Describe()}:
		g.pages = nil
	case <-claim.ctx.Done():
	}
	return ErrTaken
}
