package embedded

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/moving"
	"github.com/godwit/godwit/internal/kernel"
)

// maxRecordBytes bounds the files that this package reads back.
const maxRecordBytes = 4 << 20

// exitUnknown is the exit code of a container whose end nobody saw, because the node went down with it.
const exitUnknown = 255

// record is what must be known of a container after a reboot.
type record struct {
	State    engine.State `json:"state"` // created, running (was started) or exited
	Started  time.Time    `json:"started"`
	Finished time.Time    `json:"finished"`
	ExitCode int          `json:"exit_code"`
}

// liveState is what is known of a container that has processes. Its monitor writes it.
type liveState struct {
	Monitor moving.Identity `json:"monitor"`
	Init    moving.Identity `json:"init"`  // zero until there is one
	Stdio   []string        `json:"stdio"` // what the container's stdin, stdout and stderr are, in the words of CRIU
}

// arrivalRecord is there from the begin of an arrival until the container has been resumed and all is tidy.
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

// departureRecord is there from Depart until the container is thawed or destroyed.
type departureRecord struct {
	Started time.Time `json:"started"`
}

// haltRecord is there from Halt until Revive has started the container again, or it is destroyed.
type haltRecord struct {
	Init  moving.Identity `json:"init"` // the first process, which was told to end, or is about to be
	At    time.Time       `json:"at"`
	Ports []engine.Port   `json:"ports"` // on which it waited
}

// saveJSON replaces a file so that a crash leaves the old or the new content.
func saveJSON(path string, value any) error {
	data, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	if err := kernel.WriteFileAtomic(path, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("save %s: %w", path, err)
	}
	return nil
}

// loadJSON reads a file that saveJSON wrote. A missing file is fs.ErrNotExist.
func loadJSON(path string, value any) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxRecordBytes+1))
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if len(data) > maxRecordBytes {
		return fmt.Errorf("read %s: larger than %d bytes", path, maxRecordBytes)
	}
	if err := json.Unmarshal(data, value); err != nil {
		return fmt.Errorf("decode %s: %w", path, err)
	}
	return nil
}

// removeIfThere removes a file.
func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// exists tells whether a path is there. What cannot be found out counts as there.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
