package precopy

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
	"github.com/godwit/godwit/internal/wire/stream"
)

// Sender is the way of a container's pages to the target.
type Sender struct {
	*pipeline.Sender
	key    pipeline.Key
	sent   func(bytes int64) // is told of pages that were put
	placed chan placedRound
	claims chan []claim
	fault  func() error // happens before a run is taken; nil: nothing goes wrong

	mu   sync.Mutex
	more []*stream.Session // data connections beside the migration's own
}

// NewSender makes a sender that has no connection yet. sent is told of pages that were put.
func NewSender(sent func(bytes int64)) (*Sender, error) {
	key, err := pipeline.NewKey()
	if err != nil {
		return nil, err
	}
	sender, err := pipeline.NewSender(pipeline.SenderConfig{Key: key})
	return newSender(sender, key, sent), err
}

func newSender(sender *pipeline.Sender, key pipeline.Key, sent func(bytes int64)) *Sender {
	return &Sender{Sender: sender, key: key, sent: sent, placed: make(chan placedRound, maxPlaced),
		claims: make(chan []claim, 1)}
}

// Again makes a sender that has no connection yet, and goes on from what this one has sent to that target.
func (p *Sender) Again(sent func(bytes int64)) *Sender {
	return newSender(p.Sender.Again(), p.key, sent)
}

// Key is what pages are hashed with.
func (p *Sender) Key() pipeline.Key { return p.key }

// SetFault sets what happens before a run is taken, from now on; nil: nothing goes wrong.
func (p *Sender) SetFault(fault func() error) { p.fault = fault }

// Begin tells the target the key, over a data connection that then carries pages.
func (p *Sender) Begin(out *stream.Sections) error {
	if err := out.Whole(KindKey, "", p.key[:]); err != nil {
		return err
	}
	if err := out.Flush(); err != nil {
		return err
	}
	return p.AddLane(lane{out})
}

// maxPlaced is more than a target says before somebody listens: of the freeze's barriers nobody
// waits for an answer.
const maxPlaced = 16

// Put takes a run, and counts it as progress.
func (p *Sender) Put(run memory.Run, data []byte) error {
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

// lane is a data connection that carries pages, and other sections between them.
type lane struct{ out *stream.Sections }

// Send implements pipeline.Lane.
func (l lane) Send(frame []byte) error { return l.out.Uncounted(KindPages, frame) }

// Push implements pipeline.Lane.
func (l lane) Push() error { return l.out.Push() }

// HearPlaced takes what the target says about a barrier. It is called by who reads the connection.
func (p *Sender) HearPlaced(section stream.Section) error {
	answer, err := readPlaced(section)
	if err != nil {
		return err
	}
	select {
	case p.placed <- answer:
		return nil
	default:
		return errors.New("the target sent an answer without a request")
	}
}

// AwaitPlaced waits until all pages that were put are in place at the target. Missing ones are sent again.
func (p *Sender) AwaitPlaced(ctx context.Context, again func([]memory.TaskMap) error) error {
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

// Had gives what the target had of a page, if that is kept here. It is for when all that was put is in place.
func (p *Sender) Had(task memory.Task, address uint64, page []byte) bool {
	_, known := p.Known(task, address, page)
	return known
}

// blank says that pages of processes are zero: of those that are sent again some may be no more.
func (p *Sender) blank(maps []memory.TaskMap) error {
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
func (p *Sender) await(ctx context.Context) ([]memory.TaskMap, error) {
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
