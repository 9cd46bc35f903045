package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/memory/push"
	"github.com/godwit/godwit/internal/wire/stream"
)

// arrived is the container of a target, whose memory is being filled.
type arrived struct{ *target }

// RemotePages implements push.Container.
func (a arrived) RemotePages(ctx context.Context) (memory.RemotePages, error) {
	return a.agent.engines.EngineFor(a.definition).RemotePages(ctx, a.definition.ID)
}

// Memory implements push.Container.
func (a arrived) Memory(ctx context.Context) (memory.FillReport, error) { return a.fillReport(ctx) }

// AwaitFilling implements push.Container.
func (a arrived) AwaitFilling(ctx context.Context) error { return a.awaitFills(ctx) }

// HasRun implements push.Container.
func (a arrived) HasRun() bool { return a.move.record().Decision == migration.Ran }

// attachPush takes one of the two connections for pages that stayed at the source.
func (t *target) attachPush(ctx context.Context, hello stream.Hello, session *stream.Session) error {
	return t.push.Attach(ctx, hello, session, func() <-chan struct{} {
		if t.move.ended() {
			return nil
		}
		return t.move.done
	})
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

// watchPush ends a restore that may wait for a page which cannot come any more. The returned function ends
// the watch.
func (t *target) watchPush() (stop func()) {
	over := make(chan struct{})
	go t.move.guarded(func() {
		t.push.Watch(over, func(patience time.Duration) {
			t.move.tell(migration.Timeout{Reason: fmt.Sprintf(
				"the restore has not ended, and for %s there was no connection for pages that are "+
					"still at %s", patience, t.move.tracker.Spec.Source)})
		})
	})()
	return sync.OnceFunc(func() { close(over) })
}

func (t *target) fillReport(ctx context.Context) (memory.FillReport, error) {
	return t.agent.engines.EngineFor(t.definition).Memory(ctx, t.definition.ID)
}

// What can become of pages that will never come.
const (
	missingFail = "fail"
	missingKill = "kill"
)

// mayMiss reports whether pages of this migration can be missing for good: also when it has ended,
// because an operator at the source gave away what was there.
func (t *target) mayMiss() bool {
	record := t.move.record()
	return record.State == migration.Running ||
		record.State == migration.Done && record.Result == migration.Moved &&
			!t.agent.moves.Moving(t.definition.ID)
}

// MissingPages looks for pages of a container here that its source may not send any more, of which
// an operator has to say what becomes. It tells whether there are some; if not the machine says
// whether there is something else to decide.
func (t *target) MissingPages(ctx context.Context, how string) (missing bool, err error) {
	fill, err := t.fillReport(ctx)
	if err != nil || !t.mayMiss() || !push.Unfinished(fill) {
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

// GiveUpPages gives up the pages that have not come.
func (t *target) GiveUpPages(ctx context.Context, how string) error {
	fill, err := t.fillReport(ctx)
	if err != nil {
		return err
	}
	// a broken connection may tell nobody for long
	if t.push.Connected() && t.agent.peers.Reaches(t.move.tracker.Spec.Source) {
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
		t.push.Lost(fill)
	}
	return nil
}
