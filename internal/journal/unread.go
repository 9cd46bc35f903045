package journal

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// RetryEvery is how often a journal that could not be used is tried again: the disk may have come back.
const RetryEvery = 10 * time.Second

// ErrUnconfirmed says that a journal cannot be checked.
var ErrUnconfirmed = errors.New("cannot check the journal: it says that the container was not resumed on " +
	"this node, and the engine cannot confirm that")

// ErrNotAsked says that the engine has not been asked yet.
var ErrNotAsked = fmt.Errorf("%w yet", ErrUnconfirmed)

// Unread is a migration whose journal this agent could not use. Its container may be frozen here,
// or run here; so nothing may be said of it, and nobody may take its id.
type Unread struct {
	Spec       migration.Spec    // as far as it could be read
	Definition engine.Definition // of the container, likewise
	Engine     string            // its name
	Err        error
}

// NewUnread is the migration of an entry that cannot be used.
func NewUnread(id string, entry Entry, engine string, err error) Unread {
	spec := entry.Record.Spec
	spec.ID = id
	return Unread{Spec: spec, Definition: entry.Definition, Engine: engine, Err: err}
}

// Waits reports whether the migration only waits for the container's engine to confirm its journal. Until
// then the container counts as being migrated.
func (u Unread) Waits() bool { return errors.Is(u.Err, ErrUnconfirmed) }

// Busy is the error for a request that concerns a migration that waits for an engine, or its container.
func (u Unread) Busy() error {
	return fmt.Errorf("%w: container %s is being migrated (%s), and the migration waits for engine %s: "+
		"make %s answer, or wait: %w", engine.ErrBusy, u.Spec.Name, u.Spec.ID, u.Engine, u.Engine, u.Err)
}

// Unreads are the migrations of a node whose journals could not be used.
type Unreads struct {
	node string                 // its name
	dir  func(id string) string // of a migration

	mu   sync.Mutex
	byID map[string]Unread
}

// NewUnreads has none. dir is the directory of a migration.
func NewUnreads(node string, dir func(id string) string) *Unreads {
	return &Unreads{node: node, dir: dir, byID: map[string]Unread{}}
}

// Set notes that a journal could not be used, and reports whether that, or why, is new.
func (u *Unreads) Set(one Unread) (news bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	was := u.byID[one.Spec.ID].Err
	u.byID[one.Spec.ID] = one
	return was == nil || was.Error() != one.Err.Error()
}

// Await notes that a migration waits for its engine, before the engine is asked.
func (u *Unreads) Await(one Unread) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, known := u.byID[one.Spec.ID]; !known {
		u.byID[one.Spec.ID] = one
	}
}

// Forget forgets a migration whose journal has been used.
func (u *Unreads) Forget(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.byID, id)
}

// Why is why a journal could not be used; nil: it could.
func (u *Unreads) Why(id string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.byID[id].Err
}

// Waiting lists the migrations that wait for their engines.
func (u *Unreads) Waiting() (list []Unread) {
	for _, one := range u.List() {
		if one.Waits() {
			list = append(list, one)
		}
	}
	return list
}

// Refuse returns the error for a request that concerns a container whose migration waits for its engine, or
// nil.
func (u *Unreads) Refuse(container string) error {
	for _, one := range u.Waiting() {
		if one.Spec.Container == container {
			return one.Busy()
		}
	}
	return nil
}

// Examine lists what stands against a container from another node while migrations wait for their
// engines: what has arrived of the container itself, and volumes of which a part may be here.
func (u *Unreads) Examine(definition engine.Definition) (problems []migration.Problem) {
	for _, one := range u.Waiting() {
		remedy := fmt.Sprintf("make %s answer on %s, or wait", one.Engine, u.node)
		why := fmt.Sprintf("migration %s of container %s to %s waits for engine %s there",
			one.Spec.ID, one.Spec.Name, u.node, one.Engine)
		if one.Spec.Container == definition.ID {
			problems = append(problems,
				migration.Problem{What: "container " + definition.Name, Why: why, Remedy: remedy})
			continue
		}
		for _, v := range one.Definition.Volumes {
			if !v.Stays && slices.ContainsFunc(definition.Volumes, v.Overlaps) {
				problems = append(problems,
					migration.Problem{What: v.String(), Why: why + ", and moves it, too", Remedy: remedy})
			}
		}
	}
	return problems
}

// List lists the migrations whose journals could not be used.
func (u *Unreads) List() []Unread {
	u.mu.Lock()
	defer u.mu.Unlock()
	list := make([]Unread, 0, len(u.byID))
	for _, one := range u.byID {
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b Unread) int { return cmp.Compare(a.Spec.ID, b.Spec.ID) })
	return list
}

// Of names a migration whose journal could not be used, and that may be the container's.
func (u *Unreads) Of(container string) string {
	return u.Among(container, "")
}

// Among names a migration whose journal could not be used, and that is of one of these
// containers; "": whose is not known.
func (u *Unreads) Among(containers ...string) string {
	for _, one := range u.List() {
		if slices.Contains(containers, one.Spec.Container) {
			return one.Spec.ID
		}
	}
	return ""
}

// Advice says what a user does about a container that leaves by a migration of which the journal
// may be one that cannot be used; empty: there is no such journal.
func (u *Unreads) Advice(one engine.Container) string {
	id := u.Of(one.Definition.ID)
	if id == "" {
		return ""
	}
	return fmt.Sprintf("; the journal of migration %s cannot be used: if it cannot be repaired, move %s "+
		"away and start the agent again: the journal is made anew from the engine's note, and the target "+
		"is asked", id,
		u.dir(id))
}

// Report tells users that the journal needs their attention.
func (u Unread) Report() migration.Report {
	text := fmt.Sprintf("its journal cannot be used: %v; the agent tries again every %s, and leaves the "+
		"migration alone meanwhile", u.Err, RetryEvery)
	if u.Waits() {
		text = fmt.Sprintf("waits for engine %s to confirm that the container was not resumed on this node; "+
			"the agent asks %s again every %s, and leaves the migration alone meanwhile", u.Engine,
			u.Engine, RetryEvery)
	}
	return migration.Report{
		Migration: u.Spec.ID, Container: u.Spec.Name, Source: u.Spec.Source, Target: u.Spec.Target,
		Mode:    u.Spec.Mode,
		Started: u.Spec.Started, Result: migration.ResultDoubt, Error: &text,
		Phases: []migration.Phase{}, Rounds: []migration.Round{},
	}
}

// Check tells by an error that there is a journal of a migration that this agent does not know: it
// could not be read, so nobody may be told that the migration is not known here.
func (u *Unreads) Check(id string) error {
	if migration.CheckID(id) != nil {
		return nil // It names no file.
	}
	u.mu.Lock()
	one, ok := u.byID[id]
	u.mu.Unlock()
	if ok && one.Waits() {
		return one.Busy()
	} else if ok {
		return fmt.Errorf("%w: the journal of migration %s cannot be used: %w; it is tried again",
			engine.ErrBusy, id, one.Err)
	}
	_, err := os.Lstat(filepath.Join(u.dir(id), fileName))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("%w: whether there is a journal of migration %s: %w", engine.ErrBusy, id, err)
	}
	return fmt.Errorf("%w: there is a journal of migration %s that was not read", engine.ErrBusy, id)
}
