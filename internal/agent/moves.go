package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/journal"
	"github.com/godwit/godwit/internal/journal/rebuild"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/migration"
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

// moves are the migrations that this node has to do with, or had.
type moves struct {
	agent *Agent
	mu    sync.Mutex
	byID  map[string]*move
	execs map[string]int // by container: processes that are run in it for somebody
	over  bool           // no more begin

	unread *journal.Unreads // changed while mu is locked, so that a migration is not both

	rebuilder *rebuild.Rebuilder
}

func newMoves(agent *Agent) *moves {
	m := &moves{agent: agent, byID: map[string]*move{}, execs: map[string]int{}}
	m.unread = journal.NewUnreads(agent.self.Name, m.dir)
	m.rebuilder = m.newRebuilder()
	return m
}

func (m *moves) journal(id string, definition engine.Definition) *journal.Journal {
	return &journal.Journal{Dir: m.dir(id), Definition: definition, Boot: m.agent.boot, Spare: m.agent.spare}
}

func (m *moves) dir(id string) string {
	return filepath.Join(m.agent.config.StateDir, "migrations", id)
}

// of returns the migration under way of a container, or nil. One that waits for its engine cannot be used,
// and is not returned: see moving and refuse.
func (m *moves) of(container string) *move {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.underWay(container)
}

// tell adds to containers that leave the state of the migration.
func (m *moves) tell(containers []engine.Container) {
	for i := range containers {
		one := &containers[i]
		if one.Leaving == nil {
			continue
		}
		if m := m.of(one.Definition.ID); m != nil {
			one.Migration = string(m.record().State)
		}
	}
}

// checkVolumes refuses a new container that would have what is just being moved, to this node or
// away from it: half of it may be here, and what it writes there may be left behind.
func (m *moves) checkVolumes(definition engine.Definition) error {
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
	for _, move := range m.list() {
		if err == nil && !move.ended() {
			err = check(move.tracker.Spec, move.volumes())
		}
	}
	return err
}

// volumes are those of the container, with those that stay marked when that is known.
func (m *move) volumes() []engine.Volume {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.journal.Definition.Volumes
}

// busy reports whether any migration is under way that does something: one that waits for its engine, perhaps
// for ever, needs neither the links nor the machine.
func (m *moves) busy() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, move := range m.byID {
		if !move.ended() {
			return true
		}
	}
	return false
}

// underWaySpecs describe the migrations that have not ended, and those that wait for their engines.
func (m *moves) underWaySpecs() (specs []migration.Spec) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, move := range m.byID {
		if !move.ended() {
			specs = append(specs, move.tracker.Spec)
		}
	}
	for _, one := range m.unread.Waiting() {
		specs = append(specs, one.Spec)
	}
	slices.SortFunc(specs, func(a, b migration.Spec) int { return cmp.Compare(a.ID, b.ID) })
	return specs
}

func (m *moves) underWay(container string) *move {
	for _, move := range m.byID {
		if move.tracker.Spec.Container == container && !move.ended() {
			return move
		}
	}
	return nil
}

// containers are those that are being moved.
func (m *moves) containers() map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	moving := map[string]bool{}
	for _, move := range m.byID {
		if !move.ended() {
			moving[move.tracker.Spec.Container] = true
		}
	}
	for _, one := range m.unread.Waiting() {
		moving[one.Spec.Container] = true
	}
	return moving
}

// refuse returns the error for a request that concerns a container that is being migrated, or nil.
func (m *moves) refuse(container string) error {
	m.mu.Lock()
	move, waits := m.underWay(container), m.unread.Refuse(container)
	m.mu.Unlock()
	if move != nil {
		return move.busy()
	}
	return waits
}

// moving reports whether a container is being migrated.
func (m *moves) moving(container string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.underWay(container) != nil || m.unread.Refuse(container) != nil
}

// enter notes that somebody runs a process in a container, unless it is being migrated: such a
// process could not be.
func (m *moves) enter(container string) (leave func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if move := m.underWay(container); move != nil && move.record().State != migration.Running {
		return nil, move.busy()
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

// entered tells how many run a process in a container.
func (m *moves) entered(container string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.execs[container]
}

func (m *moves) find(id string) (*move, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if found := m.byID[id]; found != nil {
		return found, nil
	}
	if err := m.unread.Check(id); err != nil {
		return nil, err
	}
	return nil, unknownMigration(id)
}

// named finds what a user means by an id or the beginning of one. Peers give whole ids.
func (m *moves) named(id string) (*move, error) {
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
		return nil, fmt.Errorf("%w: %d migrations begin with %s: give more of its id", errRefused, len(alike),
			id)
	}
	return m.find(id)
}

// unknownMigration is the error for an id that is no migration's.
type unknownMigration string

func (e unknownMigration) Error() string {
	return fmt.Sprintf("no migration %.40q on this node; \"godwit migration ls\" lists them", string(e))
}

// Is makes it one of the things that are not found.
func (e unknownMigration) Is(target error) bool { return target == engine.ErrNotFound }

// add begins to know a migration. At most one can be under way for a container.
func (m *moves) add(added *move) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	spec := added.tracker.Spec
	if m.over {
		return fmt.Errorf("%w: the agent of %s is ending", engine.ErrBusy, m.agent.self.Name)
	}
	if m.byID[spec.ID] != nil {
		return fmt.Errorf("%w: migration %s is known already", engine.ErrBusy, spec.ID)
	}
	if err := m.unread.Check(spec.ID); err != nil {
		return err
	}
	if move := m.underWay(spec.Container); move != nil {
		return move.busy()
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

func (m *moves) arriving(source string) int {
	count := 0
	for _, move := range m.byID {
		if spec := move.tracker.Spec; spec.Side == migration.Target && spec.Source == source &&
			!move.ended() {
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

// list returns all migrations, in the order in which this node came to know them.
func (m *moves) list() []*move {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]*move, 0, len(m.byID))
	for _, move := range m.byID {
		list = append(list, move)
	}
	slices.SortFunc(list, func(a, b *move) int {
		return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.tracker.Spec.ID, b.tracker.Spec.ID))
	})
	return list
}

// prune forgets the oldest ended migrations, but none that an operator has decided: the other node
// does not know of that, and may ask at any time. To what has ended otherwise there is a right
// answer for any migration that is not known: see Outcome and Tell.
func (m *moves) prune() {
	for _, move := range surplus(m.list()) {
		m.mu.Lock()
		delete(m.byID, move.tracker.Spec.ID)
		m.mu.Unlock()
		if err := os.RemoveAll(m.dir(move.tracker.Spec.ID)); err != nil {
			m.agent.log.Warn("cannot remove an old migration", "error", err)
		}
	}
}

// surplus are the migrations to forget, so that keepMoves are left: the oldest of the node with which there
// were most. No node can push out what is known of the others.
func surplus(list []*move) (forget []*move) {
	ended := map[string][]*move{} // by the other node
	for _, move := range list {
		if record := move.record(); move.ended() && !record.Resolved && !record.Overruled {
			other := record.Spec.Source
			if record.Spec.Side == migration.Source {
				other = record.Spec.Target
			}
			ended[other] = append(ended[other], move)
		}
	}
	for range len(list) - keepMoves {
		var most []*move
		of := ""
		for other, moves := range ended {
			if len(moves) > len(most) || len(moves) == len(most) && moves[0].since.Before(most[0].since) {
				most, of = moves, other
			}
		}
		if len(most) == 0 {
			break
		}
		forget = append(forget, most[0])
		if ended[of] = most[1:]; len(ended[of]) == 0 {
			delete(ended, of)
		}
	}
	return forget
}

// ban makes sure that a migration that this node does not know never runs here: an offer of it that
// comes late is refused, also after a restart.
func (m *moves) ban(id, from string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byID[id] != nil {
		return fmt.Errorf("%w: migration %s has just begun", engine.ErrBusy, id)
	}
	if err := m.unread.Check(id); err != nil {
		return err
	}
	record, err := migration.Banned(id, from, m.agent.self.Name, time.Now().UTC())
	if err != nil {
		return err
	}
	machine, _, err := migration.Resume(record)
	if err != nil {
		return err
	}
	banned := newMove(m.agent, m.journal(id, engine.Definition{}), machine)
	m.agent.equip(banned, engine.Definition{}, nil)
	if err := banned.journal.Write(record); err != nil {
		return err
	}
	banned.remember()
	m.byID[id] = banned
	go m.agent.guarded(m.prune)()
	return nil
}

// peerBack lets migrations that wait for a node ask it at once.
func (m *moves) peerBack(node string) {
	for _, move := range m.list() {
		if spec := move.tracker.Spec; !move.ended() && (spec.Source == node || spec.Target == node) {
			move.tell(migration.PeerBack{})
		}
	}
}

// wind brings migrations to an end because the agent shall end: undone, if they are not too far for
// that. What has not ended in time goes on from its journal when an agent is back.
func (m *moves) wind(ctx context.Context) {
	m.mu.Lock()
	m.over = true
	waiting := m.unread.Waiting()
	m.mu.Unlock()
	for _, one := range waiting { // there is nothing to undo before their engines have answered
		m.agent.log.Warn("migration waits for an engine; it goes on when the agent is back", "migration",
			one.Spec.ID, "engine", one.Engine)
	}
	ctx, cancel := context.WithTimeout(ctx, windTimeout)
	defer cancel()
	for _, move := range m.list() {
		if !move.ended() {
			move.tell(migration.Cancel{Reason: "the agent of " + m.agent.self.Name + " was told to end"})
		}
	}
	for _, move := range m.list() {
		if waitFor(ctx, move.done) != nil {
			m.agent.log.Warn("migration not ended; it goes on when the agent is back", "migration",
				move.tracker.Spec.ID)
		}
	}
}

// busy is the error for who wants to do something else with a container that is being migrated.
func (m *move) busy() error {
	spec, what := m.tracker.Spec, `wait, or stop it with "godwit migration cancel %s"`
	switch m.record().State {
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

// migrationEnded keeps the report, and forgets migrations that are too old.
func (a *Agent) migrationEnded(m *move, result migration.Finish) {
	var leaves []string
	if m.tracker.Spec.Side == migration.Source && result.Result == migration.Moved {
		leaves = a.leavesBehind(m.journal.Definition)
	}
	report := m.tracker.Finish(m.machine.Record(), result, leaves)
	data, err := json.Marshal(report)
	if err == nil {
		err = kernel.WriteFileAtomic(filepath.Join(m.journal.Dir, "report.json"), data, 0o600)
	}
	if err != nil {
		a.log.Error("cannot save the report of a migration", "migration", m.tracker.Spec.ID, "error", err)
	}
	a.experience.Learn(report, m.tracker.Spec.Side, m.tracker.Spec.Container, a.peers.WayTo)
	a.log.Info("migration ended", "migration", m.tracker.Spec.ID, "container", m.tracker.Spec.Name,
		"result", result.Result, "error", result.Error)
	go a.guarded(a.moves.prune)()
	if err := a.spare.Keep(); err != nil {
		a.log.Warn("no room for the next migration", "error", err)
	}
}

// deliver hands a peer's message to a migration.
func (a *Agent) deliver(m *move, encoded *api.Message) {
	message, err := envelopes.Decode(encoded)
	if err != nil {
		a.log.Warn("message cannot be decoded", "migration", m.tracker.Spec.ID, "error", err)
		return
	}
	m.tracker.HeardReport(encoded.ReportJson)
	m.tell(migration.Received{Message: message})
}
