package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/journal"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/patience"
)

const (
	// keepMoves is how many ended migrations a node remembers: their reports, and the answers to
	// peers that ask late.
	keepMoves = 500
	// maxArriving is how many migrations from one node may be under way.
	maxArriving = 32
	// windTimeout is how long migrations may take to come to an end when the agent shall end.
	windTimeout = 15 * time.Second
)

// Moves are the migrations that this node has to do with, or had.
type Moves struct {
	config Config
	ctx    context.Context //nolint:containedctx // The life of the daemon: migrations outlive calls.

	mu    sync.Mutex
	byID  map[string]*Move
	execs map[string]int // by container: processes that are run in it for somebody
	over  bool           // no more begin

	unread *journal.Unreads // changed while mu is locked, so that a migration is not both
}

// New returns the migrations of a node, which does not know any yet: see Recovery. Their steps end with ctx.
func New(ctx context.Context, config Config) *Moves {
	m := &Moves{config: config, ctx: ctx, byID: map[string]*Move{}, execs: map[string]int{}}
	m.unread = journal.NewUnreads(config.Node, m.Dir)
	return m
}

func (m *Moves) newJournal(id string, definition engine.Definition) *journal.Journal {
	return &journal.Journal{
		Dir: m.Dir(id), Definition: definition, Boot: m.config.Boot, Spare: m.config.Spare,
	}
}

// Dir is the directory of a migration.
func (m *Moves) Dir(id string) string { return filepath.Join(m.config.Dir, id) }

// Unread are the migrations whose journals cannot be used.
func (m *Moves) Unread() *journal.Unreads { return m.unread }

// Of returns the migration under way of a container, or nil. One that waits for its engine cannot be used,
// and is not returned: see Moving and Refuse.
func (m *Moves) Of(container string) *Move {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.underWay(container)
}

// Mark adds to containers that leave the state of the migration.
func (m *Moves) Mark(containers []engine.Container) {
	for i := range containers {
		one := &containers[i]
		if one.Leaving == nil {
			continue
		}
		if m := m.Of(one.Definition.ID); m != nil {
			one.Migration = string(m.Record().State)
		}
	}
}

// CheckVolumes refuses a new container that would have what is just being moved, to this node or
// away from it: half of it may be here, and what it writes there may be left behind.
func (m *Moves) CheckVolumes(definition engine.Definition) error {
	check := func(spec migration.Spec, volumes []engine.Volume) error {
		for _, moving := range volumes {
			if !moving.Stays && slices.ContainsFunc(definition.Volumes, moving.Overlaps) {
				return fmt.Errorf("%w: %s is just being moved with container %s (%s): wait until that has "+
					"ended, or give this container another volume",
					engine.ErrBusy, moving, spec.Name, spec.ID)
			}
		}
		return nil
	}
	m.mu.Lock()
	waiting := m.unread.Waiting() // before the others: those that are recovered meanwhile are among both
	m.mu.Unlock()
	var err error
	for _, one := range waiting {
		err = errors.Join(err, check(one.Spec, one.Definition.Volumes))
	}
	for _, move := range m.List() {
		if err == nil && !move.Ended() {
			err = check(move.Tracker.Spec, move.volumes())
		}
	}
	return err
}

// volumes are those of the container, with those that stay marked when that is known.
func (m *Move) volumes() []engine.Volume {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.Journal.Definition.Volumes
}

// Busy reports whether any migration is under way that does something: one that waits for its engine, perhaps
// for ever, needs neither the links nor the machine.
func (m *Moves) Busy() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, move := range m.byID {
		if !move.Ended() {
			return true
		}
	}
	return false
}

// UnderWay describes the migrations that have not ended, and those that wait for their engines.
func (m *Moves) UnderWay() (specs []migration.Spec) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, move := range m.byID {
		if !move.Ended() {
			specs = append(specs, move.Tracker.Spec)
		}
	}
	for _, one := range m.unread.Waiting() {
		specs = append(specs, one.Spec)
	}
	slices.SortFunc(specs, func(a, b migration.Spec) int { return cmp.Compare(a.ID, b.ID) })
	return specs
}

func (m *Moves) underWay(container string) *Move {
	for _, move := range m.byID {
		if move.Tracker.Spec.Container == container && !move.Ended() {
			return move
		}
	}
	return nil
}

// AllMoving are the containers that are being moved.
func (m *Moves) AllMoving() map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	moving := map[string]bool{}
	for _, move := range m.byID {
		if !move.Ended() {
			moving[move.Tracker.Spec.Container] = true
		}
	}
	for _, one := range m.unread.Waiting() {
		moving[one.Spec.Container] = true
	}
	return moving
}

// Refuse returns the error for a request that concerns a container that is being migrated, or nil.
func (m *Moves) Refuse(container string) error {
	m.mu.Lock()
	move, waits := m.underWay(container), m.unread.Refuse(container)
	m.mu.Unlock()
	if move != nil {
		return move.Busy()
	}
	return waits
}

// Moving reports whether a container is being migrated.
func (m *Moves) Moving(container string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.underWay(container) != nil || m.unread.Refuse(container) != nil
}

// Enter notes that somebody runs a process in a container, unless it is being migrated: such a
// process could not be.
func (m *Moves) Enter(container string) (leave func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if move := m.underWay(container); move != nil && move.Record().State != migration.Running {
		return nil, move.Busy()
	}
	if err := m.unread.Refuse(container); err != nil {
		return nil, err
	}
	m.execs[container]++
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.execs[container]--; m.execs[container] == 0 {
			delete(m.execs, container)
		}
	}, nil
}

// Entered tells how many run a process in a container.
func (m *Moves) Entered(container string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.execs[container]
}

// Find finds a migration by its id.
func (m *Moves) Find(id string) (*Move, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if found := m.byID[id]; found != nil {
		return found, nil
	}
	if err := m.unread.Check(id); err != nil {
		return nil, err
	}
	return nil, UnknownError(id)
}

// Named finds what a user means by an id or the beginning of one. Peers give whole ids.
func (m *Moves) Named(id string) (*Move, error) {
	m.mu.Lock()
	var alike []string
	for whole := range m.byID {
		if id != "" && strings.HasPrefix(whole, id) {
			alike = append(alike, whole)
		}
	}
	for _, one := range m.unread.List() {
		if whole := one.Spec.ID; id != "" && strings.HasPrefix(whole, id) && m.byID[whole] == nil {
			alike = append(alike, whole)
		}
	}
	m.mu.Unlock()
	switch {
	case len(alike) == 1:
		id = alike[0]
	case len(alike) > 1 && !slices.Contains(alike, id):
		return nil, fmt.Errorf("%w: %d migrations begin with %s: give more of its id", api.ErrRefused,
			len(alike), id)
	}
	return m.Find(id)
}

// UnknownError is the error for an id that is no migration's.
type UnknownError string

func (e UnknownError) Error() string {
	return fmt.Sprintf("no migration %.40q on this node; \"godwit migration ls\" lists them", string(e))
}

// Is makes it one of the things that are not found.
func (e UnknownError) Is(target error) bool { return target == engine.ErrNotFound }

// Add begins to know a migration. At most one can be under way for a container.
func (m *Moves) Add(added *Move) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	spec := added.Tracker.Spec
	if m.over {
		return fmt.Errorf("%w: the agent of %s is ending", engine.ErrBusy, m.config.Node)
	}
	if m.byID[spec.ID] != nil {
		return fmt.Errorf("%w: migration %s is known already", engine.ErrBusy, spec.ID)
	}
	if err := m.unread.Check(spec.ID); err != nil {
		return err
	}
	if move := m.underWay(spec.Container); move != nil {
		return move.Busy()
	}
	if err := m.unread.Refuse(spec.Container); err != nil {
		return err
	}
	if spec.Side == migration.Target && m.arriving(spec.Source) >= maxArriving {
		return fmt.Errorf("%w: %d migrations from %s to %s are under way: wait until some have ended",
			engine.ErrBusy, maxArriving, spec.Source, spec.Target)
	}
	m.byID[spec.ID] = added
	return nil
}

func (m *Moves) arriving(source string) int {
	count := 0
	for _, move := range m.byID {
		if spec := move.Tracker.Spec; spec.Side == migration.Target && spec.Source == source &&
			!move.Ended() {
			count++
		}
	}
	for _, one := range m.unread.Waiting() {
		if one.Spec.Source == source {
			count++
		}
	}
	return count
}

// List returns all migrations, in the order in which this node came to know them.
func (m *Moves) List() []*Move {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]*Move, 0, len(m.byID))
	for _, move := range m.byID {
		list = append(list, move)
	}
	slices.SortFunc(list, func(a, b *Move) int {
		return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.Tracker.Spec.ID, b.Tracker.Spec.ID))
	})
	return list
}

// PeerBack lets migrations that wait for a node ask it at once.
func (m *Moves) PeerBack(node string) {
	for _, move := range m.List() {
		if spec := move.Tracker.Spec; !move.Ended() && (spec.Source == node || spec.Target == node) {
			move.Happen(migration.PeerBack{})
		}
	}
}

// Wind brings migrations to an end because the agent shall end: undone, if they are not too far for
// that. What has not ended in time goes on from its journal when an agent is back.
func (m *Moves) Wind(ctx context.Context) {
	m.mu.Lock()
	m.over = true
	waiting := m.unread.Waiting()
	m.mu.Unlock()
	for _, one := range waiting { // there is nothing to undo before their engines have answered
		m.config.Log.Warn("migration waits for an engine; it goes on when the agent is back", "migration",
			one.Spec.ID, "engine", one.Engine)
	}
	ctx, cancel := context.WithTimeout(ctx, windTimeout)
	defer cancel()
	for _, move := range m.List() {
		if !move.Ended() {
			move.Happen(migration.Cancel{Reason: "the agent of " + m.config.Node + " was told to end"})
		}
	}
	for _, move := range m.List() {
		if patience.UntilClosed(ctx, move.done) != nil {
			m.config.Log.Warn("migration not ended; it goes on when the agent is back", "migration",
				move.Tracker.Spec.ID)
		}
	}
}

// Busy is the error for who wants to do something else with a container that is being migrated.
func (m *Move) Busy() error {
	spec, what := m.Tracker.Spec, `wait, or stop it with "godwit migration cancel %s"`
	switch m.Record().State {
	case migration.InDoubt:
		what = `whether it runs at ` + spec.Target +
			` is not known yet: see "godwit migration show %s"; "godwit thaw ` + spec.Name +
			`" asks ` + spec.Target + `, and resumes it here if it does not run there`
	case migration.Committed:
		what = `it is at ` + spec.Target +
			`, and the rest is being sent or removed; "godwit migration show %s" says what delays that`
	case migration.Running:
		what = `it is here, and what is left of it at ` + spec.Source +
			` is still being sent or removed: wait (godwit migrate --wait does); ` +
			`if that node is lost for good, "godwit migration resolve %s --runs-at target"`
	}
	return fmt.Errorf("%w: container %s is being migrated (%s): "+what, engine.ErrBusy, spec.Name, spec.ID,
		spec.ID)
}

// Deliver hands a peer's message to the migration.
func (m *Move) Deliver(encoded *api.Message) {
	message, err := envelopes.Decode(encoded)
	if err != nil {
		m.all.config.Log.Warn("message cannot be decoded", "migration", m.Tracker.Spec.ID, "error", err)
		return
	}
	m.Tracker.HeardReport(encoded.ReportJson)
	m.Happen(migration.Received{Message: message})
}
