package embedded

import (
	"slices"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
)

// exitUnknown is the exit code of a container whose end nobody saw, because the node went down with it.
const exitUnknown = 255

// record is what must be known of a container after a reboot.
type record struct {
	State    engine.State `json:"state"` // created, running (was started) or exited
	Started  time.Time    `json:"started"`
	Finished time.Time    `json:"finished"`
	ExitCode int          `json:"exit_code"`
	// RanSeconds is how long it ran until it ended; 0: that does not matter any more, or nobody saw it.
	RanSeconds float64 `json:"ran_seconds,omitempty"`
}

// liveState is what is known of a container that has processes. Its monitor writes it.
type liveState struct {
	Monitor checkpoint.Identity `json:"monitor"`
	Init    checkpoint.Identity `json:"init"` // zero until there is one
	// the container's stdin, stdout and stderr, in the words of CRIU
	Stdio []string `json:"stdio"`
}

// arrivalRecord exists from the start of an arrival until the container was resumed and all is cleaned up.
type arrivalRecord struct {
	Made  []madeVolume `json:"made"` // by this arrival: Discard removes them
	Netns string       `json:"netns"`
	Anew  bool         `json:"anew,omitempty"` // it is started here; no state comes
	// Volumes are the names of those that an arrival has made which an earlier version began; it has no Made.
	Volumes []string `json:"volumes,omitempty"`
}

// made are the directories that an arrival has made or filled.
func (e *Engine) made(r arrivalRecord) []madeVolume {
	made := slices.Clone(r.Made)
	for _, name := range r.Volumes {
		made = append(made, madeVolume{Path: e.paths.volume(name)})
	}
	return made
}

// departureRecord is there from PrepareDump until the container is resumed or destroyed. It is
// durable before PrepareDump returns, and so before the target can get the final marker: as long as
// it is there, also after a reboot and without a journal, the container may run at the target, and
// nothing starts it here.
type departureRecord struct {
	Started time.Time    `json:"started"`
	Leave   engine.Leave `json:"leave,omitzero"`
}

// haltRecord is there from Halt until Revive has started the container again, or it is destroyed.
type haltRecord struct {
	Init  checkpoint.Identity `json:"init"` // the first process, which was told to end, or is about to be
	At    time.Time           `json:"at"`
	Ports []engine.Port       `json:"ports"` // on which it waited
	Leave engine.Leave        `json:"leave,omitzero"`
}
