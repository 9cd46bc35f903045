package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"sync"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/kernel"
)

// notes records what must be known after a reboot, even if the disk is full: that a container leaves, was
// stopped, or is being started.
type notes struct {
	catalog *catalog
	paths   paths
	room    room

	mu      sync.Mutex
	pending map[string]bool // by ID: a note of it is still to be made durable; see KeepNotes
	stopped map[string]bool // by ID: somebody has stopped it, which could not be recorded
}

func newNotes(c *catalog) *notes {
	return &notes{
		catalog: c, paths: c.paths, room: room{path: filepath.Join(c.paths.containers(), roomName)},
		pending: map[string]bool{}, stopped: map[string]bool{},
	}
}

// noteDeparture notes that a container leaves. It writes the note that decides first: a crash between the
// two leaves a container that was not frozen yet.
func (n *notes) noteDeparture(place container, note departureRecord) error {
	err := durable.Save(place.oldDeparture(), note)
	if err == nil {
		err = n.room.save(place.departure(), note)
	}
	if err != nil {
		return fmt.Errorf("note that it leaves: %w", err)
	}
	return nil
}

// keepDeparture makes v0.1.0's note of a departure durable, which a reboot would lose. The caller has
// locked the container.
func (n *notes) keepDeparture(place container) error {
	var note, kept departureRecord
	err := durable.Load(place.oldDeparture(), &note)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if durable.Load(place.departure(), &kept) == nil && reflect.DeepEqual(note, kept) {
		return nil
	}
	return n.room.save(place.departure(), note)
}

// KeepNotes writes notes to disk that could not be written when they were made, and reserves room for the
// next ones. Unwritten notes are lost if the machine goes down before that.
func (n *notes) KeepNotes() error {
	n.mu.Lock()
	pending := n.pending
	n.pending = map[string]bool{}
	n.mu.Unlock()
	var failed error
	for id := range pending {
		if err := n.keepNotesOf(id); err != nil {
			n.setPending(id)
			failed = errors.Join(failed, fmt.Errorf("keep the notes of container %.12s: %w", id, err))
		}
	}
	return errors.Join(failed, n.room.keep())
}

func (n *notes) keepNotesOf(id string) error {
	defer n.catalog.lock(id)()
	place := n.paths.of(id)
	if !durable.Exists(place.definition()) { // removed meanwhile
		return nil
	}
	err := n.keepDeparture(place)
	if n.hasStopped(id) {
		err = errors.Join(err, n.noteStopped(place))
	}
	return err
}

func (n *notes) setPending(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pending[id] = true
}

// noteStopped records that somebody has stopped a container. If that fails, this engine still remembers it
// in memory.
func (n *notes) noteStopped(place container) error {
	boot, err := kernel.BootID()
	var was restartRecord
	if err == nil {
		was, err = loadRestarts(place)
	}
	if err == nil {
		was.Stopped = boot
		err = n.room.save(place.restarts(), was)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err != nil {
		n.stopped[place.id], n.pending[place.id] = true, true
	} else {
		delete(n.stopped, place.id)
	}
	return err
}

// hasStopped reports whether somebody has stopped a container, but that could not be recorded.
func (n *notes) hasStopped(id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stopped[id]
}

// noteStart records that a container is being started, and that its last run was counted. A start that
// fails before the next run counts as a failure, too.
func (n *notes) noteStart(place container, note restartRecord) error {
	if err := n.room.save(place.restarts(), note); err != nil {
		return err
	}
	n.mu.Lock()
	delete(n.stopped, place.id)
	n.mu.Unlock()
	var ran record
	err := durable.Load(place.record(), &ran)
	if err != nil || ran.RanSeconds < longSeconds {
		return err
	}
	ran.RanSeconds = 0
	return n.room.save(place.record(), ran)
}
