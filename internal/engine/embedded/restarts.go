package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
)

// This engine starts nothing by itself. It keeps the facts that a restart policy needs. The agent, which
// alone knows migrations and other nodes, starts the containers that are due.

// restartRecord has the facts about a container's starts that must survive a reboot. It does not travel: at
// another node the container has not been stopped, and has not failed.
type restartRecord struct {
	// Holder is the state (Config.State) in which this node was last known to have the container:
	// somebody started it here, or the source of its migration confirmed that it has given the
	// container away. Empty: an arrival that was not confirmed.
	Holder   string `json:"holder,omitempty"`
	Failures int    `json:"failures,omitempty"` // starts by its policy since it last ran for longSeconds
	Boot     string `json:"boot,omitempty"`     // of the machine, at the last of these starts
	Stopped  string `json:"stopped,omitempty"`  // boot of the machine in which somebody stopped it
}

// longSeconds is how long a container must run to have not failed when it ends after that.
const longSeconds = 10

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

// Restartable lists the IDs of containers that have a restart policy.
func (e *Engine) Restartable() ([]string, error) {
	entries, err := os.ReadDir(e.paths.containers())
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	e.notesMu.Lock()
	defer e.notesMu.Unlock()
	known := make(map[string]bool, len(entries))
	var all []string
	for _, entry := range entries {
		id := entry.Name()
		if !idPattern.MatchString(id) {
			continue
		}
		has, is := e.policies[id]
		if !is { // a definition never changes
			var d engine.Definition
			// the container is being made or removed, or it is damaged
			if durable.Load(e.paths.of(id).definition(), &d) != nil {
				continue
			}
			has = restartable(d)
		}
		if known[id] = has; has {
			all = append(all, id)
		}
	}
	e.policies = known
	return all, nil
}

// Standing reports whether a container is to be restarted now. Of migrations, it knows only those with
// records here.
func (e *Engine) Standing(ctr engine.Container) (Standing, error) {
	standing, _, err := e.standing(ctr)
	return standing, err
}

func (e *Engine) standing(ctr engine.Container) (Standing, restartRecord, error) {
	place := e.paths.of(ctr.Definition.ID)
	var ran record
	boot, err := kernel.BootID()
	if err == nil {
		err = durable.Load(place.record(), &ran)
	}
	if err != nil {
		return Standing{}, restartRecord{}, err
	}
	was, unread := loadRestarts(place)
	if e.hasStopped(place.id) {
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
	standing, err := stands(ctr, ran, was, boot, e.config.State)
	return standing, was, err
}

func loadRestarts(place container) (restartRecord, error) {
	var was restartRecord
	err := durable.Load(place.restarts(), &was)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return was, err
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

// noteStopped records that somebody has stopped a container. If that fails, this engine still remembers it
// in memory.
func (e *Engine) noteStopped(place container) error {
	boot, err := kernel.BootID()
	var was restartRecord
	if err == nil {
		was, err = loadRestarts(place)
	}
	if err == nil {
		was.Stopped = boot
		err = e.room.save(place.restarts(), was)
	}
	e.notesMu.Lock()
	defer e.notesMu.Unlock()
	if err != nil {
		e.stopped[place.id], e.pending[place.id] = true, true
	} else {
		delete(e.stopped, place.id)
	}
	return err
}

// hasStopped reports whether somebody has stopped a container, but that could not be recorded.
func (e *Engine) hasStopped(id string) bool {
	e.notesMu.Lock()
	defer e.notesMu.Unlock()
	return e.stopped[id]
}

// Settled records that a container that arrived by a migration belongs to this node: the source has nothing
// of it any more.
func (e *Engine) Settled(_ context.Context, id string) error {
	defer e.lock(id)()
	place, err := e.find(id)
	if errors.Is(err, engine.ErrNotFound) { // it was removed since
		return nil
	}
	if err != nil {
		return err
	}
	was, err := loadRestarts(place)
	if err != nil || was.Holder == e.config.State {
		return err
	}
	was.Holder = e.config.State
	return e.room.save(place.restarts(), was)
}

// StartAfter starts a container that has ended, for a caller that knows that this node has it. With the
// container locked, prepare makes what the container needs from others, or refuses.
func (e *Engine) StartAfter(ctx context.Context, id string, prepare Prepare) error {
	return e.start(ctx, id, prepare, func(engine.Container) (restartRecord, error) {
		return restartRecord{Holder: e.config.State}, nil
	})
}

// Restart is StartAfter for a container that is due by its policy. Error: engine.ErrBusy if it is no longer
// due. A failed start counts as a failure only if no obstacle prevented it.
func (e *Engine) Restart(ctx context.Context, id string, prepare Prepare) error {
	return e.start(ctx, id, prepare, func(ctr engine.Container) (restartRecord, error) {
		standing, note, err := e.standing(ctr)
		if err == nil && !standing.Due {
			err = fmt.Errorf("%w: %s", engine.ErrBusy, standing.Why)
		}
		if err == nil {
			note.Boot, err = kernel.BootID()
		}
		note.Failures = standing.Failures + 1
		return note, err
	})
}

// noteStart records that a container is being started, and that its last run was counted. A start that
// fails before the next run counts as a failure, too.
func (e *Engine) noteStart(place container, note restartRecord) error {
	if err := e.room.save(place.restarts(), note); err != nil {
		return err
	}
	e.notesMu.Lock()
	delete(e.stopped, place.id)
	e.notesMu.Unlock()
	var ran record
	err := durable.Load(place.record(), &ran)
	if err != nil || ran.RanSeconds < longSeconds {
		return err
	}
	ran.RanSeconds = 0
	return e.room.save(place.record(), ran)
}
