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
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/identity"
)

// keepMoves is how many ended migrations a node remembers: their reports, and the answers to peers that ask late.
const keepMoves = 500

// moves are the migrations that this node has to do with, or had.
type moves struct {
	agent *Agent
	mu    sync.Mutex
	byID  map[string]*move
}

func newMoves(agent *Agent) *moves { return &moves{agent: agent, byID: map[string]*move{}} }

func (m *moves) dir(id string) string {
	return filepath.Join(m.agent.config.StateDir, "migrations", id)
}

// of returns the migration under way of a container.
func (m *moves) of(container string) (id string, moving bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, move := range m.byID {
		if move.tracker.spec.Container == container && !move.ended() {
			return id, true
		}
	}
	return "", false
}

func (m *moves) find(id string) (*move, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if found := m.byID[id]; found != nil {
		return found, nil
	}
	return nil, fmt.Errorf("%w: no migration %.40q on this node; \"godwit migration ls\" lists them", engine.ErrNotFound, id)
}

// add begins to know a migration. At most one can be under way for a container.
func (m *moves) add(added *move) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	spec := added.tracker.spec
	if m.byID[spec.ID] != nil {
		return fmt.Errorf("%w: migration %s is known already", engine.ErrBusy, spec.ID)
	}
	for id, move := range m.byID {
		if move.tracker.spec.Container == spec.Container && !move.ended() {
			return fmt.Errorf("%w: container %s is already being migrated (%s)", engine.ErrBusy, spec.Name, id)
		}
	}
	m.byID[spec.ID] = added
	return nil
}

// list returns all migrations, oldest first.
func (m *moves) list() []*move {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]*move, 0, len(m.byID))
	for _, move := range m.byID {
		list = append(list, move)
	}
	slices.SortFunc(list, func(a, b *move) int {
		return cmp.Or(a.tracker.spec.Started.Compare(b.tracker.spec.Started), cmp.Compare(a.tracker.spec.ID, b.tracker.spec.ID))
	})
	return list
}

// prune forgets the oldest ended migrations.
func (m *moves) prune() {
	list := m.list()
	for _, move := range list[:max(0, len(list)-keepMoves)] {
		if !move.ended() {
			continue
		}
		m.mu.Lock()
		delete(m.byID, move.tracker.spec.ID)
		m.mu.Unlock()
		if err := os.RemoveAll(m.dir(move.tracker.spec.ID)); err != nil {
			m.agent.log.Warn("old migration not removed", "error", err)
		}
	}
}

// recover goes on with what was under way when the agent ended, from the journals.
func (m *moves) recover() error {
	entries, err := os.ReadDir(filepath.Join(m.agent.config.StateDir, "migrations"))
	if err != nil {
		return fmt.Errorf("journals: %w", err)
	}
	for _, dir := range entries {
		if err := m.recoverOne(dir.Name()); err != nil {
			// One journal that cannot be read must not keep a node from serving; its container stays as it is.
			m.agent.log.Error("migration cannot be recovered", "migration", dir.Name(), "error", err)
		}
	}
	return nil
}

func (m *moves) recoverOne(id string) error {
	read, err := readEntry(m.dir(id))
	if errors.Is(err, errNoJournal) {
		return os.RemoveAll(m.dir(id))
	}
	if err != nil {
		return err
	}
	machine, actions, err := migration.Resume(read.Record)
	if err != nil {
		return err
	}
	move := newMove(m.agent, &journal{dir: m.dir(id), definition: read.Definition}, machine)
	if err := m.agent.equip(move, read.Definition, nil); err != nil {
		return err
	}
	move.tracker.load(m.dir(id))
	m.mu.Lock()
	m.byID[id] = move
	m.mu.Unlock()
	m.agent.log.Info("migration recovered", "migration", id, "state", read.Record.State)
	move.begin(actions)
	return nil
}

// equip gives a move the work of its side.
func (a *Agent) equip(m *move, definition engine.Definition, offer *api.Offer) error {
	spec := m.tracker.spec
	if spec.Side == migration.Source {
		node, err := a.peers.find(spec.Target)
		if err != nil {
			return err
		}
		m.work = newSource(a, m, definition, node)
		return nil
	}
	node, err := a.peers.find(spec.Source)
	if err != nil {
		return err
	}
	m.work = newTarget(a, m, definition, node, offer)
	return nil
}

// migrate begins to move a container away.
func (a *Agent) migrate(ctx context.Context, request *api.MigrateRequest) (*move, error) {
	spec, definition, node, err := a.specify(ctx, request)
	if err != nil {
		return nil, err
	}
	machine, err := migration.New(spec)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errInvalid, err)
	}
	m := newMove(a, &journal{dir: a.moves.dir(spec.ID), definition: definition}, machine)
	m.work = newSource(a, m, definition, node)
	if err := a.moves.add(m); err != nil {
		return nil, err
	}
	actions, err := machine.Step(migration.Start{})
	if err != nil {
		return nil, err
	}
	m.begin(actions)
	if request.TimeoutSeconds > 0 {
		m.limit(time.Duration(request.TimeoutSeconds * float64(time.Second)))
	}
	return m, nil
}

// specify finds what a user means, and refuses what makes no sense.
func (a *Agent) specify(ctx context.Context, request *api.MigrateRequest) (migration.Spec, engine.Definition, identity.Node, error) {
	fail := func(err error) (migration.Spec, engine.Definition, identity.Node, error) {
		return migration.Spec{}, engine.Definition{}, identity.Node{}, err
	}
	mode, err := migration.ParseMode(request.Mode)
	if err == nil {
		err = migration.CheckTimeout(time.Duration(request.TimeoutSeconds * float64(time.Second)))
	}
	if err != nil {
		return fail(fmt.Errorf("%w: %w", errInvalid, err))
	}
	node, err := a.peers.find(request.Node)
	if err != nil {
		return fail(err)
	}
	if err := migration.CheckRoute(a.self.Name, node.Name); err != nil {
		return fail(fmt.Errorf("%w: %w", errInvalid, err))
	}
	container, err := a.idle(ctx, request.Container)
	if err != nil {
		return fail(err)
	}
	if container.State != engine.Running {
		return fail(fmt.Errorf("%w: %s is %s; only a running container can be migrated", engine.ErrNotRunning,
			container.Definition.Name, container.State))
	}
	spec := migration.Spec{
		ID: randomHex(8), Side: migration.Source, Container: container.Definition.ID, Name: container.Definition.Name,
		Source: a.self.Name, Target: node.Name, Mode: mode, Started: time.Now().UTC(),
	}
	return spec, container.Definition, node, nil
}

// accept begins a migration that a peer offers.
func (a *Agent) accept(from string, offer *api.Offer) (*move, error) {
	if err := checkProtocol(from, offer); err != nil {
		return nil, err
	}
	var definition engine.Definition
	if err := json.Unmarshal(offer.DefinitionJson, &definition); err != nil {
		return nil, fmt.Errorf("%w: definition of the container: %w", errInvalid, err)
	}
	spec := migration.Spec{
		ID: offer.Migration, Side: migration.Target, Container: definition.ID, Name: definition.Name,
		Source: from, Target: a.self.Name, Mode: migration.Mode(offer.Mode), Started: time.Unix(0, offer.StartedUnixNanoseconds).UTC(),
	}
	machine, err := migration.New(spec)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errInvalid, err)
	}
	if offer.MemoryBytes < 0 || offer.TreesBytes < 0 {
		return nil, fmt.Errorf("%w: sizes cannot be negative", errInvalid)
	}
	m := newMove(a, &journal{dir: a.moves.dir(spec.ID), definition: definition}, machine)
	if err := a.equip(m, definition, offer); err != nil {
		return nil, err
	}
	if err := a.moves.add(m); err != nil {
		return nil, err
	}
	m.begin(nil)
	return m, nil
}

func checkProtocol(from string, offer *api.Offer) error {
	if offer.Protocol == protocolVersion {
		return nil
	}
	return fmt.Errorf("%w: node %s speaks version %d of the migration protocol, this node %d: use the same version of godwit on both",
		errInvalid, from, offer.Protocol, protocolVersion)
}

// ban makes sure that a migration that this node does not know never runs here: an offer of it that comes late is
// refused, also after a restart.
func (m *moves) ban(id, from string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byID[id] != nil {
		return fmt.Errorf("%w: migration %s has just begun", engine.ErrBusy, id)
	}
	record, err := migration.Banned(id, from, m.agent.self.Name, time.Now().UTC())
	if err != nil {
		return err
	}
	machine, _, err := migration.Resume(record)
	if err != nil {
		return err
	}
	banned := newMove(m.agent, &journal{dir: m.dir(id)}, machine)
	if err := banned.journal.write(record); err != nil {
		return err
	}
	banned.over = true
	close(banned.done)
	m.byID[id] = banned
	return nil
}

// migrationEnded keeps the report, and forgets migrations that are too old.
func (a *Agent) migrationEnded(m *move, result migration.Finish) {
	report := m.tracker.finish(m.machine.Record())
	data, err := json.Marshal(report)
	if err == nil {
		err = kernel.WriteFileAtomic(filepath.Join(m.journal.dir, "report.json"), data, 0o600)
	}
	if err != nil {
		a.log.Error("report not kept", "migration", m.tracker.spec.ID, "error", err)
	}
	a.log.Info("migration ended", "migration", m.tracker.spec.ID, "container", m.tracker.spec.Name,
		"result", result.Result, "error", result.Error)
	go a.moves.prune()
}

// deliver hands a peer's message to a migration.
func (a *Agent) deliver(m *move, encoded *api.Message) {
	message, err := decodeMessage(encoded)
	if err != nil {
		a.log.Warn("message cannot be decoded", "migration", m.tracker.spec.ID, "error", err)
		return
	}
	m.tracker.heardReport(encoded.ReportJson)
	m.tell(migration.Received{Message: message})
}
