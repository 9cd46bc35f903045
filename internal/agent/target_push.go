package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/postcopy"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/stream"
)

// pushTarget is where the two connections come together over which pages follow that stayed at the
// source. When they broke the source opens two new ones, which take the place of the old.
type pushTarget struct {
	mu   sync.Mutex
	pair *pushPair // nil: none has come
}

// pushPair are two connections that belong together.
type pushPair struct {
	name     string                     // by the source
	sessions map[string]*stream.Session // by purpose
	once     sync.Once
	ended    chan struct{}
	err      error
	stop     context.CancelFunc // of what uses it; nil: nothing does yet
}

// join puts a connection to the one that it belongs to. The second makes the pair complete. A
// connection that the source has given up may come after those of its next try: it must not take
// the place of one of these.
func (d *pushTarget) join(ctx context.Context, hello stream.Hello, session *stream.Session) (*pushPair,
	context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pair == nil || d.pair.name != hello.Pair || d.pair.sessions[hello.Purpose] != nil {
		d.replace(hello.Pair)
	}
	d.pair.sessions[hello.Purpose] = session
	if len(d.pair.sessions) < 2 {
		return d.pair, nil
	}
	ctx, d.pair.stop = context.WithCancel(ctx)
	return d.pair, ctx
}

// replace begins a new pair. The caller holds the lock.
func (d *pushTarget) replace(name string) {
	if d.pair != nil {
		d.pair.end(errReplaced)
	}
	d.pair = &pushPair{name: name, sessions: map[string]*stream.Session{}, ended: make(chan struct{})}
}

var (
	errReplaced = errors.New("the source has opened another connection in its place")
	errNotHere  = errors.New("the container no longer comes to this node")
)

// connected tells whether both connections stand, as far as is known.
func (d *pushTarget) connected() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pair == nil || len(d.pair.sessions) < 2 {
		return false
	}
	select {
	case <-d.pair.ended:
		return false
	default:
		return true
	}
}

// close ends the use of the connections, and all who wait for them.
func (d *pushTarget) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pair != nil {
		d.pair.end(errNotHere)
		d.pair = nil
	}
}

// end is for when nobody uses the pair any more.
func (p *pushPair) end(err error) {
	p.once.Do(func() {
		p.err = err
		if p.stop != nil {
			p.stop()
		}
		for _, session := range p.sessions {
			_ = session.Close() // nothing is under way that matters
		}
		close(p.ended)
	})
}

// attachPush takes one of the two connections, and returns when they are of no use any more.
func (t *target) attachPush(ctx context.Context, hello stream.Hello, session *stream.Session) error {
	pair, complete := t.push.join(ctx, hello, session)
	over := t.move.done
	if t.move.ended() {
		over = nil
	}
	if complete != nil && over == nil {
		pair.end(t.pushEnded(complete, pair))
	} else if complete != nil {
		pair.end(t.pushOver(complete, pair))
	}
	select {
	case <-pair.ended:
		return pair.err
	case <-over:
		return nil
	case <-ctx.Done():
		return nil
	}
}

// pushEnded tells a source that nothing is needed of it any more: an operator has ended the migration here.
func (t *target) pushEnded(ctx context.Context, pair *pushPair) error {
	client, err := postcopy.NewClient(postcopy.ClientConfig{Silence: t.agent.config.peerTimeout()})
	if err != nil {
		return err
	}
	return client.Run(ctx, pair.sessions[purposeUrgent], pair.sessions[purposePush])
}

// pushOver brings pages over a pair of connections to what fills the container's memory.
func (t *target) pushOver(ctx context.Context, pair *pushPair) error {
	if err := t.awaitFills(ctx); err != nil {
		return err
	}
	pages, err := t.agent.engines.EngineFor(t.definition).RemotePages(ctx, t.definition.ID)
	if errors.Is(err, engine.ErrNotFilling) { // then it has all that it needs, or has ended
		err = t.nothingMissing(ctx)
	}
	if err != nil {
		return err
	}
	t.move.tracker.Pushes(t.pushed, nil)
	silence := t.agent.config.peerTimeout()
	config := postcopy.ClientConfig{Pages: pages, Fill: t.fillReport, Every: silence / signsOfLife,
		Silence: silence}
	if before, key := t.memory.Before(); before != nil {
		config.Before, config.Key = before, key
	}
	client, err := postcopy.NewClient(config)
	if err == nil {
		err = client.Run(ctx, pair.sessions[purposeUrgent], pair.sessions[purposePush])
	}
	if errors.Is(err, postcopy.ErrStale) {
		err = errors.Join(err, t.memory.CloseBefore()) // whole pages from now on
	}
	if pages != nil {
		err = errors.Join(err, pages.Close())
	}
	return err
}

// awaitFills waits until what fills the memory of an arrival is there: the source opens its
// connections while the engine may still be starting the container. After a restart of this agent
// there is no arrival to wait for.
func (t *target) awaitFills(ctx context.Context) error {
	t.mu.Lock()
	arrival := t.arrival
	t.mu.Unlock()
	if arrival == nil {
		return nil
	}
	return waitFor(ctx, t.fills)
}

// nothingMissing makes sure that nobody waits for pages. The source gives its copy up for this
// answer, so what is not known is no such answer.
func (t *target) nothingMissing(ctx context.Context) error {
	fill, err := t.fillReport(ctx)
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if unfinished(fill) {
		return fmt.Errorf("the pager of %s does not answer, and %d pages are missing",
			t.definition.Name, fill.RemoteLeft)
	}
	if fill.State == memory.FillNone && t.move.record().Decision != migration.Ran {
		return fmt.Errorf("nothing fills the memory of %s yet", t.definition.Name)
	}
	return nil
}

// unfinished tells whether a container still needs pages that are at its source.
func unfinished(fill memory.FillReport) bool {
	return fill.State == memory.Filling && fill.RemoteLeft > 0
}

// watchPush ends a restore that may wait for a page which cannot come any more: the source opens
// other connections only when the container runs here. The returned function ends the watch.
func (t *target) watchPush() (stop func()) {
	if !t.memory.Misses() {
		return func() {}
	}
	over, patience := make(chan struct{}), t.agent.config.peerTimeout()
	go t.move.guarded(func() {
		ticker := time.NewTicker(patience / signsOfLife)
		defer ticker.Stop()
		for last := time.Now(); ; {
			select {
			case <-over:
				return
			case <-ticker.C:
			}
			if t.push.connected() {
				last = time.Now()
			} else if time.Since(last) > patience {
				t.move.tell(migration.Timeout{Reason: fmt.Sprintf(
					"the restore has not ended, and for %s there was no connection for pages that are "+
						"still at %s", patience, t.move.tracker.Spec.Source)})
				return
			}
		}
	})()
	return sync.OnceFunc(func() { close(over) })
}

func (t *target) fillReport(ctx context.Context) (memory.FillReport, error) {
	return t.agent.engines.EngineFor(t.definition).Memory(ctx, t.definition.ID)
}

// pushed tells how far the container's memory is, until the source's report tells it.
func (t *target) pushed() *migration.Push {
	fill, err := t.fillReport(t.agent.ctx)
	if err != nil || fill.RemotePages == 0 { // the container may have ended, and its report is gone with it
		t.mu.Lock()
		fill = t.lost
		t.mu.Unlock()
	}
	if fill.RemotePages == 0 {
		return nil
	}
	report := pushReport(fill)
	report.Spill = t.spilled()
	if !fill.Resumed.IsZero() {
		report.Seconds = fill.FillSeconds
	}
	return &report
}

// What can become of pages that will never come.
const (
	missingFail = "fail"
	missingKill = "kill"
)

// mayMiss tells whether pages of this migration can be missing for good: also when it has ended,
// because an operator at the source gave away what was there.
func (t *target) mayMiss() bool {
	record := t.move.record()
	return record.State == migration.Running ||
		record.State == migration.Done && record.Result == migration.Moved &&
			!t.agent.moves.moving(t.definition.ID)
}

// missingPages looks for pages of a container here that its source may not send any more, of which
// an operator has to say what becomes. It tells whether there are some; if not the machine says
// whether there is something else to decide.
func (t *target) missingPages(ctx context.Context, how string) (missing bool, err error) {
	fill, err := t.fillReport(ctx)
	if err != nil || !t.mayMiss() || !unfinished(fill) {
		return false, err
	}
	if how != missingFail && how != missingKill {
		return true, fmt.Errorf("%w: %d of %d pages of %s's memory are still at %s; choose what happens "+
			"without them: --missing-pages %s (it runs on, and each access to one of them fails with "+
			"SIGBUS) or --missing-pages %s", errInvalid, fill.RemoteLeft, fill.Pages,
			t.definition.Name, t.move.tracker.Spec.Source, missingFail, missingKill)
	}
	return true, nil
}

// giveUpPages gives up the pages that have not come.
func (t *target) giveUpPages(ctx context.Context, how string) error {
	fill, err := t.fillReport(ctx)
	if err != nil {
		return err
	}
	// a broken connection may tell nobody for long
	if t.push.connected() && t.agent.peers.Reaches(t.move.tracker.Spec.Source) {
		return fmt.Errorf("%w: %s appears to be sending that memory. If it has failed, this node notices "+
			"within seconds: try again then", errRefused, t.move.tracker.Spec.Source)
	}
	pages, err := t.agent.engines.EngineFor(t.definition).RemotePages(ctx, t.definition.ID)
	if err != nil {
		return err
	}
	if err := errors.Join(pages.GiveUp(ctx, how == missingFail), pages.Close()); err != nil {
		return err
	}
	if how == missingFail {
		t.noteLoss(fill)
	}
	return nil
}

// noteLoss keeps what was given up: a container that touches it may end at once.
func (t *target) noteLoss(fill memory.FillReport) {
	fill.LostPages, fill.RemoteLeft = fill.RemoteLeft, 0
	t.mu.Lock()
	t.lost = fill
	t.mu.Unlock()
	t.move.tracker.Pushes(t.pushed, nil) // after a restart of the agent nothing has done it
}
