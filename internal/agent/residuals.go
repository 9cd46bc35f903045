package agent

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/placement"
)

// residuals are residual memory copies by container: the memory of containers that have left, kept in
// case they come back. Nothing depends on them, so each can be given up at any time: they only save
// sending the same contents again.
type residuals struct {
	limit int64 // of all together; 0: a share of what is available when one is made

	mu  sync.Mutex
	all map[string]*residual
}

// residual is the residual memory copy of one container.
type residual struct {
	definition engine.Definition
	pages      *memory.Residual
	id         string // of the migration by which the container left
	target     string // where the container went
	node       string // this one
	started    time.Time
	fresh      time.Time // the memory is as it was then
	idle       bool      // an idle copy: it was staged, and the container was never here
	incomplete bool      // there was no room for all pages, or not all had arrived

	mu      sync.Mutex
	until   time.Time
	users   int  // migrations that refer to it
	dropped bool // to be closed when its last user is done
}

func newResiduals(limit int64) *residuals {
	return &residuals{limit: limit, all: map[string]*residual{}}
}

// residualShare is the share of the available memory that residual copies may take, unless the operator
// has set a limit. The least shares are of all memory: when less than that is available, residual copies
// go first, and then copies that other nodes have staged here.
const (
	residualShare      = 4
	residualLeastShare = 10
	stagedLeastShare   = 20
)

// room drops the oldest copies to make room for a new one of that many bytes, unless it would not fit
// even alone, and returns how much memory the new copy may take. there is the part of its bytes that is
// in memory already and is given back while the copy is made.
func (r *residuals) room(bytes, there int64) (int64, error) {
	available, err := kernel.MemoryAvailable()
	if err != nil {
		return 0, err
	}
	available += there
	limit := available / residualShare
	if r.limit > 0 {
		limit = min(r.limit, available/2)
	}
	for bytes <= limit && r.bytes()+bytes > limit && r.dropOldest() {
		continue
	}
	return max(0, limit-r.bytes()), nil
}

// add keeps a copy, and drops an older copy of the same container.
func (r *residuals) add(added *residual) {
	r.drop(added.definition.ID)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[added.definition.ID] = added
}

// use returns the copy of a container, which stays until the user releases it. Nil: there is none.
func (r *residuals) use(container string) *residual {
	r.mu.Lock()
	defer r.mu.Unlock()
	entry := r.all[container]
	if entry == nil {
		return nil
	}
	entry.mu.Lock()
	defer entry.mu.Unlock()
	entry.users++
	return entry
}

// release ends a use. It does nothing for nil.
func (r *residual) release() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.users--
	r.closeUnused()
}

// closeUnused gives back the memory of a copy that was dropped and has no users. The caller holds the lock.
func (r *residual) closeUnused() {
	if r.dropped && r.users == 0 {
		_ = r.pages.Close() // a file in memory: there is nothing that could fail
	}
}

// drop forgets the copy of a container, and reports whether there was one.
func (r *residuals) drop(container string) bool {
	r.mu.Lock()
	entry := r.all[container]
	delete(r.all, container)
	r.mu.Unlock()
	if entry == nil {
		return false
	}
	entry.mu.Lock()
	defer entry.mu.Unlock()
	entry.dropped = true
	entry.closeUnused()
	return true
}

// dropOldest forgets the copy that was made first, and reports whether there was one.
func (r *residuals) dropOldest() bool {
	list := r.list()
	return len(list) > 0 && r.drop(list[0].definition.ID)
}

func (r *residuals) list() []*residual {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]*residual, 0, len(r.all))
	for _, entry := range r.all {
		list = append(list, entry)
	}
	slices.SortFunc(list, func(a, b *residual) int { return a.started.Compare(b.started) })
	return list
}

func (r *residuals) bytes() (bytes int64) {
	for _, entry := range r.list() {
		bytes += entry.pages.Bytes()
	}
	return bytes
}

// yield gives up copies, oldest first, until so many bytes are free.
func (r *residuals) yield(bytes int64) {
	for bytes > 0 {
		list := r.list()
		if len(list) == 0 {
			return
		}
		bytes -= list[0].pages.Bytes()
		r.drop(list[0].definition.ID)
	}
}

// expire forgets copies whose time is over.
func (r *residuals) expire(now time.Time) {
	for _, entry := range r.list() {
		if now.After(entry.expires()) {
			r.drop(entry.definition.ID)
		}
	}
}

// extend lets the copy of a container stay at least until then. Nil: there is none.
func (r *residuals) extend(container string, until time.Time) *residual {
	r.mu.Lock()
	entry := r.all[container]
	r.mu.Unlock()
	if entry == nil {
		return nil
	}
	entry.mu.Lock()
	defer entry.mu.Unlock()
	if until.After(entry.until) {
		entry.until = until
	}
	return entry
}

// copyOf describes the copy of a container at this node. If there is none, the result names no node.
func (r *residuals) copyOf(container, here string) placement.Copy {
	r.mu.Lock()
	defer r.mu.Unlock()
	entry := r.all[container]
	if entry == nil {
		return placement.Copy{}
	}
	copied := placement.Copy{Node: here, Bytes: entry.pages.Bytes()}
	if !entry.incomplete {
		copied.Fresh = entry.fresh
	}
	return copied
}

func (r *residual) expires() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.until
}

func (r *residual) describe() migration.Stage {
	told := migration.Stage{
		ID: r.id, Kind: migration.Residual, Container: r.definition.Name, ContainerID: r.definition.ID,
		Source: r.target,
		Target: r.node, State: migration.StageReady, Started: r.started, Fresh: r.fresh, Until: r.expires(),
		Rounds:      1,
		MemoryBytes: r.pages.Bytes(),
	}
	if r.idle {
		told.Kind, told.State = migration.StagedCopy, migration.StageIdle
	}
	return told
}

// watchMemory gives up what can be made again when its time is over, and when memory, or the disk, is short.
func (a *Agent) watchMemory(ctx context.Context) {
	tick := time.NewTicker(stageTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			a.residuals.expire(now)
			a.kept.Expire(now)
			a.engines.LetGo()
			a.relieve()
		}
	}
}

// relieve gives up a residual copy or, if there is none, a staged copy, when memory is short: one at a time.
func (a *Agent) relieve() {
	if len(a.residuals.list()) == 0 && len(a.stagedCopies.list()) == 0 {
		return
	}
	machine, err := kernel.ReadMachine()
	if err != nil {
		return // nothing is known to be short
	}
	available, total := machine.MemoryAvailableBytes, machine.MemoryTotalBytes
	if available < total/residualLeastShare && a.residuals.dropOldest() {
		a.log.Info("residual memory copy of a container given up: memory is short", "available", available)
		return
	}
	if list := a.stagedCopies.list(); len(list) > 0 && available < total/stagedLeastShare {
		list[0].drop(errCopyShort)
	}
}

var errCopyShort = errors.New("that node is short of memory")
