package agent

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
	"github.com/godwit/godwit/internal/wire/stream"
)

// pageSender is the way of a container's pages to the target.
type pageSender struct {
	*pipeline.Sender
	key    pipeline.Key
	sent   func(bytes int64) // is told of pages that were put
	placed chan placedRound
	claims chan []claim
	fault  func() error      // happens before a run is taken; nil: nothing goes wrong
	more   []*stream.Session // data connections beside the migration's own
}

// newPageSender makes a pipeline that has no connection yet.
func newPageSender(sent func(bytes int64)) (*pageSender, error) {
	key, err := pipeline.NewKey()
	if err != nil {
		return nil, err
	}
	sender, err := pipeline.NewSender(pipeline.SenderConfig{Key: key})
	return &pageSender{Sender: sender, key: key, sent: sent, placed: make(chan placedRound, maxPlaced),
		claims: make(chan []claim, 1)}, err
}

// begin tells the target the key, over a data connection that then carries pages.
func (p *pageSender) begin(out *stream.Sections) error {
	if err := out.Whole(kindKey, "", p.key[:]); err != nil {
		return err
	}
	if err := out.Flush(); err != nil {
		return err
	}
	return p.AddLane(pageLane{out})
}

// placedRound is what the target says about a barrier.
type placedRound struct {
	barrier uint64
	missing []memory.TaskMap
}

// maxPlaced is more than a target says before somebody listens: of the freeze's barriers nobody
// waits for an answer.
const maxPlaced = 16

// Put takes a run, and counts it as progress.
func (p *pageSender) Put(run memory.Run, data []byte) error {
	if p.fault != nil {
		if err := p.fault(); err != nil {
			return err
		}
	}
	if err := p.Sender.Put(run, data); err != nil {
		return err
	}
	p.sent(int64(run.Pages) * int64(memory.PageSize()))
	return nil
}

// pageLane is a data connection that carries pages, and other sections between them.
type pageLane struct{ out *stream.Sections }

// Send implements pipeline.Lane.
func (l pageLane) Send(frame []byte) error { return l.out.Uncounted(kindPages, frame) }

// Push implements pipeline.Lane.
func (l pageLane) Push() error { return l.out.Push() }

// openPages makes the pipeline, or goes on with the one of what was staged, and tells the target its key.
func (s *source) openPages(ctx context.Context) error {
	pages, err := newPageSender(s.move.tracker.Transferred)
	if err != nil {
		return err
	}
	if s.staged != nil {
		pages.Sender, pages.key = s.staged.sender.Again(), s.staged.sender.key
	}
	s.mu.Lock()
	s.pages = pages
	s.mu.Unlock()
	go s.agent.guarded(func() {
		<-s.move.done
		s.closePages(errors.New("the migration has ended"))
	})()
	if err := pages.begin(s.out); err != nil {
		return err
	}
	if s.staged == nil && s.reservation.GetFootprint() {
		known, err := pages.awaitClaims(ctx)
		if err != nil {
			return err
		}
		s.move.tracker.Decided(fmt.Sprintf("%s has a residual memory copy of %d pages", s.target.Name, known))
	}
	s.watchLanes(ctx, pages)
	return nil
}

// lanesPace is how often is looked whether more connections would be of use.
const lanesPace = 500 * time.Millisecond

// watchLanes opens more connections as long as one cannot hold what the link does, until ctx ends.
func (s *source) watchLanes(ctx context.Context, pages *pageSender) {
	go s.move.guarded(func() {
		ticker := time.NewTicker(lanesPace)
		defer ticker.Stop()
		before, known := s.data.Transport()
		for lanes := 1; known && lanes < pipeline.MaxLanes; {
			select {
			case <-ticker.C:
			case <-pages.Done():
				return
			case <-ctx.Done():
				return
			}
			var now stream.Transport
			if now, known = s.data.Transport(); stream.WantsMore(before, now) {
				if err := s.openLane(ctx, pages); err != nil {
					s.agent.log.Info("one more data connection", "migration", s.id(), "error", err)
					return // It goes on with those that there are.
				}
				lanes++
			}
			before = now
		}
	})()
}

// openLane opens one more connection for pages.
func (s *source) openLane(ctx context.Context, pages *pageSender) error {
	data, err := s.dialData(ctx, purposePages, 1)
	if err != nil {
		return err
	}
	s.mu.Lock()
	pages.more = append(pages.more, data)
	lanes := len(pages.more) + 1
	s.mu.Unlock()
	if err := errors.Join(data.SetCodec(s.data.Codec()),
		pages.AddLane(pageLane{stream.NewSections(data, nil)})); err != nil {
		return errors.Join(err, data.Close())
	}
	go s.move.guarded(func() { // it answers, and notices the end
		_, err := data.Next()
		pages.Fail(fmt.Errorf("one of the data connections to %s: %w", s.target.Name, err))
	})()
	s.move.tracker.Decided(fmt.Sprintf("%d data connections: fewer cannot fill the link", lanes))
	return nil
}

// dialData opens a data connection, with workers that compress. All connections of a migration
// share its bandwidth limit.
func (s *source) dialData(ctx context.Context, purpose string, workers int) (*stream.Session, error) {
	options := s.agent.streamOptions()
	options.Limiter, options.Workers, options.Beside, options.Eager = &s.limiter, workers, s.data, true
	data, err := s.dialSession(ctx, stream.Hello{Purpose: purpose}, options)
	if err != nil {
		return nil, err
	}
	data.Adapt(func(from, to stream.Codec) {
		s.agent.log.Debug("codec", "migration", s.id(), "from", from.String(), "to", to.String(), "link",
			data.LinkBitsPerSecond())
		s.move.tracker.ChangedCodec(from, to)
	})
	return data, nil
}

func (s *source) dialSession(ctx context.Context, hello stream.Hello,
	options stream.Options) (*stream.Session, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	hello.Migration = s.id()
	data, err := stream.Open(ctx, conn, hello, options)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return data, nil
}

// linkSeen is what the data connections have got through, in bits per second, the last time that
// the link was the limit; 0: it never was.
func (s *source) linkSeen() (bitsPerSecond float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	bitsPerSecond = s.data.LinkBitsPerSecond()
	if s.pages != nil {
		for _, data := range s.pages.more {
			bitsPerSecond += data.LinkBitsPerSecond()
		}
	}
	if s.files != nil && s.files.data != nil { // it is not used at the same time, mostly
		bitsPerSecond = max(bitsPerSecond, s.files.data.LinkBitsPerSecond())
	}
	return bitsPerSecond
}

// closePages ends what carries pages, and whoever waits in it.
func (s *source) closePages(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pages == nil {
		return
	}
	s.pages.Fail(why)
	for _, data := range s.pages.more {
		_ = data.Close()
	}
}

// sent is what has gone over all data connections so far.
func (s *source) sent() stream.Counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	counters := s.data.Counters()
	if s.files != nil && s.files.data != nil {
		counters = counters.Plus(s.files.data.Counters())
	}
	if s.layers != nil {
		counters = counters.Plus(s.layers.transfer.Left())
	}
	if s.pages != nil {
		for _, data := range s.pages.more {
			counters = counters.Plus(data.Counters())
		}
	}
	return counters
}

// hearPlaced takes what the target says about a barrier.
func (s *source) hearPlaced(section stream.Section) error {
	pages, err := s.opened(section)
	if err != nil {
		return err
	}
	return pages.hearPlaced(section)
}

// hearClaims takes what the target says that it has.
func (s *source) hearClaims(section stream.Section) error {
	pages, err := s.opened(section)
	if err != nil {
		return err
	}
	return pages.hearClaims(section, maxClaims(s.offered))
}

// opened is what a section of the target is about.
func (s *source) opened(section stream.Section) (*pageSender, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pages == nil {
		return nil, fmt.Errorf("a section %.40q comes before any page was sent", section.Kind)
	}
	return s.pages, nil
}

func (p *pageSender) hearPlaced(section stream.Section) error {
	number, err := strconv.ParseUint(section.Name, 10, 64)
	if err != nil {
		return fmt.Errorf("the target reported an invalid barrier %.40q", section.Name)
	}
	missing, err := memory.DecodeMap(section)
	if err != nil {
		return err
	}
	select {
	case p.placed <- placedRound{number, missing}:
		return nil
	default:
		return errors.New("the target sent an answer without a request")
	}
}

// awaitPlaced waits until all pages that were put are in place at the target. Missing ones are sent again.
func (p *pageSender) awaitPlaced(ctx context.Context, again func([]memory.TaskMap) error) error {
	for try := 0; ; try++ {
		missing, err := p.await(ctx)
		if err != nil || len(missing) == 0 {
			return err
		}
		if try > 0 {
			return fmt.Errorf("%w: they were sent again, and %d processes still lack some",
				pipeline.ErrMissing, len(missing))
		}
		if err := errors.Join(p.Missing(missing), p.blank(missing), again(missing)); err != nil {
			return err
		}
	}
}

// had gives what the target had of a page, if that is kept here. It is for when all that was put is in place.
func (p *pageSender) had(task memory.Task, address uint64, page []byte) bool {
	_, known := p.Known(task, address, page)
	return known
}

// blank says that pages of processes are zero: of those that are sent again some may be no more.
func (p *pageSender) blank(maps []memory.TaskMap) error {
	for _, m := range maps {
		if m.Task.IsObject() {
			continue // all that is missing of it is read again
		}
		for _, area := range m.Areas {
			for at, left := area.Start, area.Pages; left > 0; {
				run := memory.Run{Task: m.Task, Address: at, Pages: uint32(min(left, memory.MaxZeroPages)),
					Zero: true}
				if err := p.Sender.Put(run, nil); err != nil {
					return err
				}
				at, left = at+uint64(run.Pages)*uint64(memory.PageSize()), left-uint64(run.Pages)
			}
		}
	}
	return nil
}

// await ends a round, and waits for the target's answer.
func (p *pageSender) await(ctx context.Context) ([]memory.TaskMap, error) {
	number, err := p.Barrier(ctx)
	if err != nil {
		return nil, err
	}
	for {
		select {
		case answer := <-p.placed:
			if answer.barrier == number {
				return answer.missing, nil
			}
			if answer.barrier > number {
				return nil, fmt.Errorf("the target has placed all before barrier %d, and there are %d",
					answer.barrier, number)
			}
		case <-p.Done():
			return nil, p.Err()
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
