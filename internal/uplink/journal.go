package uplink

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/durable"
)

// keepCommands is how many commands are remembered: as many as migrations.
const keepCommands = 500

// maxErrorBytes bounds what is kept of an error.
const maxErrorBytes = 2000

// The states of an outcome.
const (
	Begun   = "begun"
	Moved   = "moved"
	Failed  = "failed"
	InDoubt = "in-doubt"
)

// entry is a command of the past, and what came of it.
type entry struct {
	ID         string    `json:"id"`
	Controller string    `json:"controller,omitempty"`
	Container  string    `json:"container"`
	Generation uint64    `json:"generation"`
	Node       string    `json:"node"`
	At         time.Time `json:"at"`
	State      string    `json:"state"`
	Error      string    `json:"error,omitempty"`
	Refused    bool      `json:"refused,omitempty"` // before anything moved
	Cancels    int       `json:"cancels,omitempty"` // how often the controller has asked to cancel it
	Downtime   float64   `json:"downtime_seconds,omitempty"`
	Total      float64   `json:"total_seconds,omitempty"`
}

func (e entry) outcome() *api.Outcome {
	return &api.Outcome{
		Command: e.ID, State: e.State, Error: e.Error, DowntimeSeconds: e.Downtime, TotalSeconds: e.Total,
		Refused: e.Refused,
	}
}

// ended reports whether nothing more comes of the command.
func (e entry) ended() bool { return e.State == Moved || e.State == Failed }

// errStale means that a command is from the past.
var errStale = errors.New("the command is from the past")

// errCancelled means that a migration never began.
var errCancelled = errors.New("it was cancelled before it began")

// journal remembers commands durably. Its methods may be called concurrently.
type journal struct {
	path string
	mu   sync.Mutex
	kept kept
}

// kept is the file.
type kept struct {
	// Controller is the fingerprint of the controller that the node met last: another one counts anew.
	Controller string  `json:"controller,omitempty"`
	Epoch      uint64  `json:"epoch"` // the highest that was seen
	Commands   []entry `json:"commands"`
}

func openJournal(path string) (*journal, error) {
	j := &journal{path: path}
	if err := durable.Load(path, &j.kept); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("commands of the controller: %w; if the file cannot be repaired, move it "+
			"away: "+
			"only commands that are under way then count as new", err)
	}
	return j, nil
}

// meet notes the epoch of a controller. Error: it is an earlier leader.
func (j *journal) meet(controller string, epoch uint64) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if controller != j.kept.Controller {
		return j.save(kept{Controller: controller, Epoch: epoch, Commands: j.kept.Commands})
	}
	if epoch < j.kept.Epoch {
		return fmt.Errorf("%w: its leader has the epoch %d, and the node has seen %d", errStale, epoch,
			j.kept.Epoch)
	}
	if epoch == j.kept.Epoch {
		return nil
	}
	after := j.kept
	after.Epoch = epoch
	return j.save(after)
}

// begin notes a command before anything is done about it. known: it is there already, and may have begun.
func (j *journal) begin(c *api.Command, now time.Time) (found entry, known bool, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if found, known := j.find(c.Id); known {
		return found, true, nil
	}
	if err := j.current(c); err != nil {
		return entry{}, false, err
	}
	for _, one := range j.kept.Commands {
		same := one.Controller == j.kept.Controller && one.Container == c.Container
		if same && one.Generation >= c.Generation {
			return entry{}, false, fmt.Errorf("%w: it has the generation %d of the container, and the node "+
				"has had %d", errStale, c.Generation, one.Generation)
		}
	}
	added := j.entry(c, now)
	return added, false, j.add(c, added)
}

func (j *journal) find(id string) (found entry, known bool) {
	for _, one := range j.kept.Commands {
		if one.ID == id {
			return one, true
		}
	}
	return entry{}, false
}

// current refuses a command of an earlier leader.
func (j *journal) current(c *api.Command) error {
	if c.Epoch < j.kept.Epoch {
		return fmt.Errorf("%w: it has the epoch %d, and the node has seen %d", errStale, c.Epoch,
			j.kept.Epoch)
	}
	return nil
}

func (j *journal) entry(c *api.Command, now time.Time) entry {
	return entry{
		ID: c.Id, Container: c.Container, Generation: c.Generation, Node: c.Node, At: now.UTC(), State: Begun,
		Controller: j.kept.Controller,
	}
}

func (j *journal) add(c *api.Command, added entry) error {
	after := kept{Controller: j.kept.Controller, Epoch: c.Epoch}
	after.Commands = append(j.without(keepCommands-1), added)
	return j.save(after)
}

// cancel notes that a command is to be cancelled. One that has not arrived has ended with that.
func (j *journal) cancel(c *api.Command, now time.Time) (entry, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.current(c); err != nil {
		return entry{}, err
	}
	found, known := j.find(c.Id)
	if !known {
		added := j.entry(c, now)
		added.State, added.Error, added.Cancels = Failed, errCancelled.Error(), 1
		return added, j.add(c, added)
	}
	if found.ended() {
		return found, nil
	}
	found.Cancels++
	return found, j.replace(found)
}

// cancels is how often the controller has asked to cancel a command.
func (j *journal) cancels(id string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	found, _ := j.find(id)
	return found.Cancels
}

// without returns the commands, fewer if there are too many: those that have ended go first, the oldest
// of them first.
func (j *journal) without(most int) []entry {
	surplus := len(j.kept.Commands) - most
	var rest []entry
	for _, one := range j.kept.Commands {
		if surplus > 0 && one.ended() {
			surplus--
			continue
		}
		rest = append(rest, one)
	}
	return rest
}

// note makes durable what came of a command.
func (j *journal) note(changed entry) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(changed.Error) > maxErrorBytes {
		changed.Error = strings.ToValidUTF8(changed.Error[:maxErrorBytes], "")
	}
	found, _ := j.find(changed.ID)
	changed.Cancels = found.Cancels // may have grown meanwhile
	return j.replace(changed)
}

// replace saves another version of a command.
func (j *journal) replace(changed entry) error {
	after := kept{Controller: j.kept.Controller, Epoch: j.kept.Epoch}
	for _, one := range j.kept.Commands {
		if one.ID == changed.ID {
			one = changed
		}
		after.Commands = append(after.Commands, one)
	}
	return j.save(after)
}

// open returns the commands of which more may come.
func (j *journal) open() (open []entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, one := range j.kept.Commands {
		if !one.ended() {
			open = append(open, one)
		}
	}
	return open
}

// save replaces the file, and remembers what is in it.
func (j *journal) save(after kept) error {
	if err := durable.Save(j.path, after); err != nil {
		return fmt.Errorf("commands of the controller: %w", err)
	}
	j.kept = after
	return nil
}
