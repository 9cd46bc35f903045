package agent

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/ahead"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
)

// footprints are what containers that have left held in their memory, by container, in case they
// come back. All of it can be given up at any time: it saves what need not be sent, and nothing
// depends on it.
type footprints struct {
	limit int64 // of all together; 0: a share of what is available when one is made

	mu  sync.Mutex
	all map[string]*footprint
}

// footprint is that of one container.
type footprint struct {
	definition engine.Definition
	pages      *memory.Footprint
	id         string // the migration by which it left
	target     string // where it went
	node       string // this one
	started    time.Time
	fresh      time.Time // as of when it is
	parked     bool      // the container was never here: it was staged
	incomplete bool      // there was no room for all of it, or not all of it had come

	mu      sync.Mutex
	until   time.Time
	users   int  // migrations that refer to it
	dropped bool // to be closed when nobody uses it
}

func newFootprints(limit int64) *footprints {
	return &footprints{limit: limit, all: map[string]*footprint{}}
}

// share of the available memory that footprints may take, unless the operator has set a limit; and
// shares of all memory: when less is available, footprints go, and then copies that other nodes
// have staged here.
const (
	footprintShare      = 4
	footprintLeastShare = 10
	baseLeastShare      = 20
)

// room is how much memory a new footprint may take, when the oldest ones have made room for so many
// bytes. They do not if it would not fit even alone. Of its bytes so many are in memory already,
// which is given back while it is made.
func (f *footprints) room(bytes, there int64) (int64, error) {
	available, err := kernel.MemoryAvailable()
	if err != nil {
		return 0, err
	}
	available += there
	limit := available / footprintShare
	if f.limit > 0 {
		limit = min(f.limit, available/2)
	}
	for bytes <= limit && f.bytes()+bytes > limit && f.dropOldest() {
		continue
	}
	return max(0, limit-f.bytes()), nil
}

// add begins to know a footprint, instead of an older one of the container.
func (f *footprints) add(added *footprint) {
	f.drop(added.definition.ID)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all[added.definition.ID] = added
}

// use finds the footprint of a container, for as long as it is not released. Nil: there is none.
func (f *footprints) use(container string) *footprint {
	f.mu.Lock()
	defer f.mu.Unlock()
	one := f.all[container]
	if one == nil {
		return nil
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	one.users++
	return one
}

// release ends a use. Nil has nothing to end.
func (o *footprint) release() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.users--
	o.closeUnused()
}

// closeUnused gives the memory back of one that was dropped. The caller holds the lock.
func (o *footprint) closeUnused() {
	if o.dropped && o.users == 0 {
		_ = o.pages.Close() // a file in memory: there is nothing that could fail
	}
}

// drop forgets the footprint of a container, and tells whether there was one.
func (f *footprints) drop(container string) bool {
	f.mu.Lock()
	one := f.all[container]
	delete(f.all, container)
	f.mu.Unlock()
	if one == nil {
		return false
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	one.dropped = true
	one.closeUnused()
	return true
}

// dropOldest forgets the one that was made first, and tells whether there was one.
func (f *footprints) dropOldest() bool {
	list := f.list()
	return len(list) > 0 && f.drop(list[0].definition.ID)
}

func (f *footprints) list() []*footprint {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := make([]*footprint, 0, len(f.all))
	for _, one := range f.all {
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b *footprint) int { return a.started.Compare(b.started) })
	return list
}

func (f *footprints) bytes() (bytes int64) {
	for _, one := range f.list() {
		bytes += one.pages.Bytes()
	}
	return bytes
}

// yield gives up footprints until so many bytes are free, oldest first.
func (f *footprints) yield(bytes int64) {
	for bytes > 0 {
		list := f.list()
		if len(list) == 0 {
			return
		}
		bytes -= list[0].pages.Bytes()
		f.drop(list[0].definition.ID)
	}
}

// expire forgets those whose time is over.
func (f *footprints) expire(now time.Time) {
	for _, one := range f.list() {
		if now.After(one.expires()) {
			f.drop(one.definition.ID)
		}
	}
}

// extend lets the footprint of a container stay at least until then. Nil: there is none.
func (f *footprints) extend(container string, until time.Time) *footprint {
	f.mu.Lock()
	one := f.all[container]
	f.mu.Unlock()
	if one == nil {
		return nil
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	if until.After(one.until) {
		one.until = until
	}
	return one
}

// copyOf describes the footprint of a container as a copy at this node; without a node: there is none.
func (f *footprints) copyOf(container, here string) ahead.Copy {
	f.mu.Lock()
	defer f.mu.Unlock()
	one := f.all[container]
	if one == nil {
		return ahead.Copy{}
	}
	copied := ahead.Copy{Node: here, Bytes: one.pages.Bytes()}
	if !one.incomplete {
		copied.Fresh = one.fresh
	}
	return copied
}

func (o *footprint) expires() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.until
}

func (o *footprint) describe() migration.Stage {
	told := migration.Stage{
		ID: o.id, Kind: migration.Footprint, Container: o.definition.Name, ContainerID: o.definition.ID, Source: o.target,
		Target: o.node, State: migration.StageReady, Started: o.started, Fresh: o.fresh, Until: o.expires(), Rounds: 1,
		MemoryBytes: o.pages.Bytes(),
	}
	if o.parked {
		told.Kind, told.State = migration.BaseCopy, migration.StageParked
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
			a.footprints.expire(now)
			a.kept.Expire(now)
			a.engines.LetGo()
			a.relieve()
		}
	}
}

// relieve gives up footprints, and then bases, as long as memory is short: one of each at a time.
func (a *Agent) relieve() {
	if len(a.footprints.list()) == 0 && len(a.bases.list()) == 0 {
		return
	}
	machine, err := kernel.ReadMachine()
	if err != nil {
		return // nothing is known to be short
	}
	available, total := machine.MemoryAvailableBytes, machine.MemoryTotalBytes
	if available < total/footprintLeastShare && a.footprints.dropOldest() {
		a.log.Info("footprint of a container given up: memory is short", "available", available)
		return
	}
	if list := a.bases.list(); len(list) > 0 && available < total/baseLeastShare {
		list[0].drop(errBaseShort)
	}
}

var errBaseShort = errors.New("that node is short of memory")
