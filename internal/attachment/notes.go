package attachment

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine/checkpoint"
)

// adoption records a container of another engine whose attachment this node has taken over. The record stays
// until the container leaves by a migration. So if there is a record and the engine no longer has the
// container, the engine's tools removed it.
type adoption struct {
	Container string     `json:"container"`
	Engine    string     `json:"engine"`
	Address   netip.Addr `json:"address"`
	// while this process lives it is there, whatever its engine tells
	First checkpoint.Identity `json:"first"`
}

// notes are these, in a file: a container may be removed while the agent does not run.
// They are only needed to give something back, so nothing fails because of a file that cannot be
// read or written.
type notes struct {
	path string
	mu   sync.Mutex
	all  []adoption
	// read: the file was. unsaved: it has not what there is now.
	read, unsaved bool
	missing       map[string]time.Time // by container: since when its engine has told of others only
}

func (n *notes) list() []adoption {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.load()
	return slices.Clone(n.all)
}

// load reads what an earlier agent has noted. What runs is noted anew anyway.
func (n *notes) load() {
	if n.read {
		return
	}
	n.read, n.missing = true, map[string]time.Time{}
	if err := durable.Load(n.path, &n.all); err != nil {
		n.all, n.unsaved = nil, !errors.Is(err, fs.ErrNotExist)
	}
}

// note keeps one.
func (n *notes) note(one adoption) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.load()
	if !slices.Contains(n.all, one) {
		n.all, n.unsaved = append(without(n.all, one.Container), one), true
	}
}

// drop forgets a container. Doing nothing is success.
func (n *notes) drop(container string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.load()
	delete(n.missing, container)
	if kept := without(n.all, container); len(kept) < len(n.all) {
		n.all, n.unsaved = kept, true
	}
}

func without(all []adoption, container string) []adoption {
	return slices.DeleteFunc(slices.Clone(all),
		func(have adoption) bool { return have.Container == container })
}

// save writes what has changed. What fails is tried again at the next look.
func (n *notes) save() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.unsaved {
		return nil
	}
	if err := durable.Save(n.path, n.all); err != nil {
		return fmt.Errorf("containers of other engines: %w", err)
	}
	n.unsaved = false
	return nil
}

// missingFor is how long a container has to be missing in all looks, two at least: files that are
// replaced are not there for a moment.
const missingFor = 2 * adoptEvery

// missed notes whether a container is missing, and tells whether it is for long enough to be no more.
func (n *notes) missed(container string, missing bool, now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	since, known := n.missing[container]
	switch {
	case !missing:
		delete(n.missing, container)
	case !known:
		n.missing[container] = now
	default:
		return now.Sub(since) >= missingFor
	}
	return false
}
