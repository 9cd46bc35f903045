package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
)

// This engine starts nothing by itself. It keeps the facts that a restart policy needs. The agent, which
// alone knows migrations and other nodes, starts the containers that are due.

// Standing says whether a stopped container is to be restarted by its policy.
type Standing struct {
	Due      bool
	Why      string // why it is not due
	Unheld   bool   // whether this node has it is unknown; somebody has to decide that
	Failures int    // in a row
}

// restartable reports whether a container has a restart policy that may restart it.
func restartable(d engine.Definition) bool {
	return d.Restart != "" && d.Restart != string(engine.RestartNo)
}

// restarts knows which containers are to be started again.
type restarts struct {
	catalog *catalog
	paths   paths
	notes   *notes
	state   string // Config.State

	mu       sync.Mutex
	policies map[string]bool // by ID: whether a container has a restart policy
}

// Restartable lists the IDs of containers that have a restart policy.
func (r *restarts) Restartable() ([]string, error) {
	entries, err := os.ReadDir(r.paths.containers())
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	known := make(map[string]bool, len(entries))
	var all []string
	for _, entry := range entries {
		id := entry.Name()
		if !idPattern.MatchString(id) {
			continue
		}
		has, is := r.policies[id]
		if !is { // a definition never changes
			var d engine.Definition
			// the container is being made or removed, or it is damaged
			if durable.Load(r.paths.of(id).definition(), &d) != nil {
				continue
			}
			has = restartable(d)
		}
		if known[id] = has; has {
			all = append(all, id)
		}
	}
	r.policies = known
	return all, nil
}

// Standing reports whether a container is to be restarted now. Of migrations, it knows only those with
// records here.
func (r *restarts) Standing(ctr engine.Container) (Standing, error) {
	standing, _, err := r.standing(ctr)
	return standing, err
}

func (r *restarts) standing(ctr engine.Container) (Standing, restartRecord, error) {
	place := r.paths.of(ctr.Definition.ID)
	var ran record
	boot, err := kernel.BootID()
	if err == nil {
		err = durable.Load(place.record(), &ran)
	}
	if err != nil {
		return Standing{}, restartRecord{}, err
	}
	was, unread := loadRestarts(place)
	if r.notes.hasStopped(place.id) {
		was.Stopped = boot
	}
	switch {
	case ctr.Leaving != nil:
		return Standing{Why: "a migration has moved it away, or is moving it away"}, was, nil
	case ctr.State == engine.Created:
		return Standing{Why: "it was never started"}, was, nil
	case ctr.State != engine.Exited || durable.Exists(place.arrival()):
		return Standing{Why: "it is " + string(ctr.State)}, was, nil
	case unread != nil:
		why := fmt.Sprintf("it is unknown whether this node has it: the record of its restarts cannot "+
			"be read: %v", unread)
		return Standing{Unheld: true, Why: why}, was, nil
	}
	standing, err := stands(ctr, ran, was, boot, r.state)
	return standing, was, err
}

// stands decides about a container that has ended, given the boot of the machine and the name of the
// engine's state.
func stands(ctr engine.Container, ran record, was restartRecord, boot, state string) (Standing, error) {
	policy, err := engine.ParseRestartPolicy(ctr.Definition.Restart)
	if err != nil {
		return Standing{}, err
	}
	unseen := ran.State == engine.Running // nobody saw its end
	s := Standing{Failures: was.Failures}
	if ran.RanSeconds >= longSeconds || unseen && was.Boot != boot {
		s.Failures = 0
	}
	switch {
	case was.Holder == "":
		s.Unheld, s.Why = true,
			"this node has no record that it may start it: the source of its migration has not "+
				"confirmed the handover, or an older godwit started it"
	case was.Holder != state:
		s.Unheld, s.Why = true,
			"the state of this node was restored, or copied from another machine, since the container "+
				"was last started here: it may run elsewhere"
	case was.Stopped != "" && (policy.When != engine.RestartAlways || was.Stopped == boot):
		s.Why = "it was stopped"
	case policy.When == engine.RestartNo && unseen:
		s.Why = "its node went down, and it has no restart policy"
	case policy.When == engine.RestartNo:
		s.Why = "it has no restart policy"
	case policy.When == engine.RestartOnFailure && ctr.ExitCode == 0:
		s.Why = "it ended without an error"
	case policy.Most > 0 && s.Failures >= policy.Most:
		s.Why = fmt.Sprintf("it failed again after %d restarts", s.Failures)
	default:
		s.Due = true
	}
	return s, nil
}

// Settled records that a container that arrived by a migration belongs to this node: the source has nothing
// of it any more.
func (r *restarts) Settled(_ context.Context, id string) error {
	defer r.catalog.lock(id)()
	place, err := r.catalog.find(id)
	if errors.Is(err, engine.ErrNotFound) { // it was removed since
		return nil
	}
	if err != nil {
		return err
	}
	was, err := loadRestarts(place)
	if err != nil || was.Holder == r.state {
		return err
	}
	was.Holder = r.state
	return r.notes.room.save(place.restarts(), was)
}
