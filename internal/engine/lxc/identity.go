package lxc

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
)

// ownRecord is our file in LXC's directory of a container. LXC removes it with the container, and does not
// copy it to others; a user who copies the whole directory does, so the record also has the name.
type ownRecord struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// identities finds containers by the ids that Godwit gives them, in our files alone: LXC need not answer.
type identities struct {
	config Config
	naming sync.Mutex // held while a container gets its id
}

// ownOf reads our record in LXC's directory of a container. Error: fs.ErrNotExist.
func (i *identities) ownOf(name string) (ownRecord, error) {
	var own ownRecord
	path := i.place("", name).own()
	err := durable.Load(path, &own)
	if err == nil && (!idPattern.MatchString(own.ID) || !namePattern.MatchString(own.Name)) {
		err = fmt.Errorf("%s has no id, or no name", path)
	}
	return own, err
}

// copied reports whether a record came with a copy of another container's directory, which still exists. If
// that one does not exist, the container was renamed.
func (i *identities) copied(own ownRecord, name string) bool {
	if own.Name == name {
		return false
	}
	original, err := i.ownOf(own.Name)
	return err == nil && original.ID == own.ID || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// find finds the place of a container by its id, from our records alone: LXC need not answer. Error:
// engine.ErrNotFound only if no container can have that id.
func (i *identities) find(id string) (place, error) {
	entries, err := os.ReadDir(i.config.Path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return place{}, fmt.Errorf("look for LXC container %.80q: %w", id, err)
	}
	var found []place
	var unread error
	for _, entry := range entries {
		if !entry.IsDir() || !namePattern.MatchString(entry.Name()) {
			continue
		}
		own, err := i.ownOf(entry.Name())
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			unread = errors.Join(unread, err)
		case own.ID == id && !i.copied(own, entry.Name()):
			found = append(found, i.place(id, entry.Name()))
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return place{}, fmt.Errorf("LXC containers %s and %s have one id: remove one", found[0].name,
			found[1].name)
	case unread != nil:
		return place{}, unread
	}
	return place{}, fmt.Errorf("LXC container %.80q: %w", id, engine.ErrNotFound)
}

// identityOf returns the id that a container has on every node. A running container gets one. Error:
// engine.ErrNotFound if it has none: Godwit has not dealt with it yet.
func (i *identities) identityOf(name string, runs bool) (string, error) {
	i.naming.Lock()
	defer i.naming.Unlock()
	own, err := i.ownOf(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	switch {
	case err == nil && own.Name == name:
		return own.ID, nil
	case err == nil && !i.copied(own, name):
	case !runs:
		return "", fmt.Errorf("LXC container %s: %w: it is not running, and has not run since Godwit "+
			"was installed",
			name, engine.ErrNotFound)
	default:
		var id [32]byte
		_, _ = rand.Read(id[:]) // never fails (crypto/rand)
		own.ID = hex.EncodeToString(id[:])
	}
	own.Name = name
	return own.ID, durable.Save(i.place("", name).own(), own)
}

// departureRecord exists from PrepareDump until the container is resumed or destroyed.
type departureRecord struct {
	Started time.Time `json:"started"`
	// a process of the container: with it, LXC need not be asked
	First checkpoint.Identity `json:"first"`
	Leave engine.Leave        `json:"leave,omitzero"`
}

// departureOf reads the record of a departure. Error: fs.ErrNotExist.
func (i *identities) departureOf(id string) (departureRecord, error) {
	var was departureRecord
	if !idPattern.MatchString(id) {
		return was, fs.ErrNotExist
	}
	err := durable.Load(i.place(id, "").departure(), &was)
	return was, err
}

func (i *identities) place(id, name string) place {
	return place{
		lxc: filepath.Join(i.config.Path, name), name: name,
		state: filepath.Join(i.config.StateDir, "lxc", id), run: filepath.Join(i.config.RunDir, "lxc", id),
	}
}
