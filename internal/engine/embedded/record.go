package embedded

import (
	"errors"
	"io/fs"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
)

// exitUnknown is the exit code of a container whose end was not seen, because the node went down with it.
const exitUnknown = 255

// record has the facts about a container that must survive a reboot.
type record struct {
	State    engine.State `json:"state"` // created, running (was started) or exited
	Started  time.Time    `json:"started"`
	Finished time.Time    `json:"finished"`
	ExitCode int          `json:"exit_code"`
	// RanSeconds is how long it ran until it ended; 0: that no longer matters, or nobody saw its end.
	RanSeconds float64 `json:"ran_seconds,omitempty"`
}

// liveState is the state of a container that has processes. Its monitor writes it.
type liveState struct {
	Monitor checkpoint.Identity `json:"monitor"`
	Init    checkpoint.Identity `json:"init"` // zero until there is one
	// the container's stdin, stdout and stderr, in CRIU's notation
	Stdio []string `json:"stdio"`
}

// arrivalRecord exists from the start of an arrival until the container was resumed and everything is
// cleaned up.
type arrivalRecord struct {
	Made  []madeVolume `json:"made"` // by this arrival: Discard removes them
	Netns string       `json:"netns"`
	Anew  bool         `json:"anew,omitempty"` // the container is started here; no state comes
	// Volumes are the names of the volumes made by an arrival that an earlier version began; such a record
	// has no Made.
	Volumes []string `json:"volumes,omitempty"`
}

// departureRecord exists from PrepareDump until the container is resumed or destroyed. It is durable before
// PrepareDump returns, and so before the target can get the final marker. While it exists, even after a
// reboot and without a journal, the container may run at the target, and nothing starts it here.
type departureRecord struct {
	Started time.Time    `json:"started"`
	Leave   engine.Leave `json:"leave,omitzero"`
}

// haltRecord exists from Halt until Revive has restarted the container, or the container is destroyed.
type haltRecord struct {
	Init  checkpoint.Identity `json:"init"` // the first process, which was told to end, or is about to be
	At    time.Time           `json:"at"`
	Ports []engine.Port       `json:"ports"` // on which the container listened
	Leave engine.Leave        `json:"leave,omitzero"`
}

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

func loadRestarts(place container) (restartRecord, error) {
	var was restartRecord
	err := durable.Load(place.restarts(), &was)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return was, err
}
