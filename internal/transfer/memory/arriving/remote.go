package arriving

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/memory/push"
	"github.com/godwit/godwit/internal/wire/stream"
)

// container is the container that has arrived, whose memory is being filled.
type container struct{ memory *Memory }

// RemotePages implements push.Container.
func (c container) RemotePages(ctx context.Context) (memory.RemotePages, error) {
	return c.memory.config.Engine().RemotePages(ctx, c.memory.config.Spec.Container)
}

// Memory implements push.Container.
func (c container) Memory(ctx context.Context) (memory.FillReport, error) {
	return c.memory.report(ctx)
}

// AwaitFilling implements push.Container: the source opens its connections while the engine may still be
// starting the container. After a restart of this agent there is no arrival to wait for.
func (c container) AwaitFilling(ctx context.Context) error {
	if !c.memory.config.Migration.Arrives() {
		return nil
	}
	select {
	case <-c.memory.filling:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// HasRun implements push.Container.
func (c container) HasRun() bool { return c.memory.config.Migration.Record().Decision == migration.Ran }

func (m *Memory) report(ctx context.Context) (memory.FillReport, error) {
	return m.config.Engine().Memory(ctx, m.config.Spec.Container)
}

// AttachPush takes one of the two connections for pages that stayed at the source.
func (m *Memory) AttachPush(ctx context.Context, hello stream.Hello, session *stream.Session) error {
	return m.push.Attach(ctx, hello, session, func() <-chan struct{} {
		select {
		case <-m.config.Ended:
			return nil
		default:
			return m.config.Ended
		}
	})
}

// KeepSpillKey keeps a key unless the migration is over, and returns the one that is kept.
func (m *Memory) KeepSpillKey(key []byte) []byte {
	return m.push.KeepSpillKey(key, func() bool {
		select {
		case <-m.config.Ended:
			return true
		default:
			return false
		}
	})
}

// ClosePush ends the connections for pages that stayed at the source.
func (m *Memory) ClosePush() { m.push.Close() }

// Watch tells when a restore may wait for a page which cannot come any more. stop ends the watch.
func (m *Memory) Watch(lost func(why string), broken func(err error)) (stop func()) {
	over := make(chan struct{})
	go guard.Logged(m.config.Log, func() {
		err := guard.Do(func() error {
			m.push.Watch(over, func(patience time.Duration) {
				lost(fmt.Sprintf("the restore has not ended, and for %s there was no connection for pages "+
					"that are still at %s", patience, m.config.Spec.Source))
			})
			return nil
		})
		if err != nil {
			broken(err)
		}
	})()
	return sync.OnceFunc(func() { close(over) })
}

// What can become of pages that will never come.
const (
	missingFail = "fail"
	missingKill = "kill"
)

// mayMiss reports whether pages of this migration can be missing for good: also when it has ended,
// because an operator at the source gave away what was there.
func (m *Memory) mayMiss() bool {
	record := m.config.Migration.Record()
	return record.State == migration.Running ||
		record.State == migration.Done && record.Result == migration.Moved && !m.config.Migration.MovedOn()
}

// Missing looks for pages of a container here that its source may not send any more, of which an operator has
// to say what becomes. It tells whether there are some.
func (m *Memory) Missing(ctx context.Context, how string) (missing bool, err error) {
	fill, err := m.report(ctx)
	if err != nil || !m.mayMiss() || !push.Unfinished(fill) {
		return false, err
	}
	if how != missingFail && how != missingKill {
		return true, fmt.Errorf("%w: %d of %d pages of %s's memory are still at %s; choose what happens "+
			"without them: --missing-pages %s (it runs on, and each access to one of them fails with "+
			"SIGBUS) or --missing-pages %s", api.ErrInvalid, fill.RemoteLeft, fill.Pages,
			m.config.Spec.Name, m.config.Spec.Source, missingFail, missingKill)
	}
	return true, nil
}

// GiveUp gives up the pages that have not come.
func (m *Memory) GiveUp(ctx context.Context, how string) error {
	fill, err := m.report(ctx)
	if err != nil {
		return err
	}
	// a broken connection may tell nobody for long
	if m.push.Connected() && m.config.Reaches(m.config.Spec.Source) {
		return fmt.Errorf("%w: %s appears to be sending that memory. If it has failed, this node notices "+
			"within seconds: try again then", api.ErrRefused, m.config.Spec.Source)
	}
	pages, err := m.config.Engine().RemotePages(ctx, m.config.Spec.Container)
	if err != nil {
		return err
	}
	if err := errors.Join(pages.GiveUp(ctx, how == missingFail), pages.Close()); err != nil {
		return err
	}
	if how == missingFail {
		m.push.Lost(fill)
	}
	return nil
}
