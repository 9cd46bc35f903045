package migrate

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/gc"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/migration"
)

// lingering is how long after the end of a migration its last connections and callers may hold on to
// its resources. Then the memory goes back: containers need it more.
const lingering = time.Second

func (m *Move) finish(result migration.Finish) {
	if m.over {
		return
	}
	m.over = true
	done := sync.OnceFunc(func() { close(m.done) })
	defer done() // whatever goes wrong: the container is not on its way any more
	m.Work().Ended(result)
	m.all.config.On.Changed(m.Journal.Definition)
	done()
	m.all.config.On.Ended()
	m.Take(m.Work().Fresh()) // the migration is remembered for long, and what it was done with is large
	time.AfterFunc(lingering, m.resumeGC)
}

// PutOffGC keeps the freeze, which comes soon, free of garbage collections: see package gc.
func (m *Move) PutOffGC() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.over && !m.gcPutOff {
		m.gcPutOff = true
		gc.Process.PutOff()
	}
}

// resumeGC lets garbage be collected as usual, some time after the end of the migration.
func (m *Move) resumeGC() {
	m.mu.Lock()
	putOff := m.gcPutOff
	m.gcPutOff = false
	m.mu.Unlock()
	if putOff {
		gc.Process.GoOn()
	}
	gc.Process.GiveBack()
}

// remember makes this a migration that has ended already.
func (m *Move) remember() {
	m.over = true
	close(m.done)
}

// Ended reports whether the migration has ended on this node.
func (m *Move) Ended() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

// Limit ends the migration if it takes too long.
func (m *Move) Limit(after time.Duration) {
	go m.Guarded(func() {
		timer := time.NewTimer(after)
		defer timer.Stop()
		select {
		case <-timer.C:
			m.Happen(migration.Timeout{Reason: fmt.Sprintf("more than %s", after)})
		case <-m.done:
		case <-m.all.ctx.Done():
		}
	})()
}

// Progress is how far the migration is.
func (m *Move) Progress(at time.Time) migration.Progress { return m.Tracker.Progress(m.Record(), at) }

// Report tells of the migration, also while it is under way.
func (m *Move) Report() migration.Report { return m.Tracker.Report(m.Record(), m.Ended()) }

// Finish keeps the report of a migration whose work has ended, and forgets migrations that are too old.
// leaves is what stays of the container at the source.
func (m *Move) Finish(result migration.Finish, leaves []string) {
	report := m.Tracker.Finish(m.machine.Record(), result, leaves)
	data, err := json.Marshal(report)
	if err == nil {
		err = kernel.WriteFileAtomic(filepath.Join(m.Journal.Dir, "report.json"), data, 0o600)
	}
	log, spec := m.all.config.Log, m.Tracker.Spec
	if err != nil {
		log.Error("cannot save the report of a migration", "migration", spec.ID, "error", err)
	}
	m.all.config.On.Learn(report, spec.Side, spec.Container)
	log.Info("migration ended", "migration", spec.ID, "container", spec.Name, "result", result.Result,
		"error", result.Error)
	go guard.Logged(log, m.all.prune)()
	if err := m.all.config.Spare.Keep(); err != nil {
		log.Warn("no room for the next migration", "error", err)
	}
}
