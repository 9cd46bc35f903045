package lxc

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/patience"
)

// ownRecord is our file in LXC's directory of a container. LXC removes it with the container, and does not
// copy it to others; a user who copies the whole directory does, so the record also has the name.
type ownRecord struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// ownOf reads our record in LXC's directory of a container. Error: fs.ErrNotExist.
func (e *Engine) ownOf(name string) (ownRecord, error) {
	var own ownRecord
	path := e.place("", name).own()
	err := durable.Load(path, &own)
	if err == nil && (!idPattern.MatchString(own.ID) || !namePattern.MatchString(own.Name)) {
		err = fmt.Errorf("%s has no id, or no name", path)
	}
	return own, err
}

// copied reports whether a record came with a copy of another container's directory, which still exists. If
// that one does not exist, the container was renamed.
func (e *Engine) copied(own ownRecord, name string) bool {
	if own.Name == name {
		return false
	}
	original, err := e.ownOf(own.Name)
	return err == nil && original.ID == own.ID || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// find finds the place of a container by its id, from our records alone: LXC need not answer. Error:
// engine.ErrNotFound only if no container can have that id.
func (e *Engine) find(id string) (place, error) {
	entries, err := os.ReadDir(e.config.Path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return place{}, fmt.Errorf("look for LXC container %.80q: %w", id, err)
	}
	var found []place
	var unread error
	for _, entry := range entries {
		if !entry.IsDir() || !namePattern.MatchString(entry.Name()) {
			continue
		}
		own, err := e.ownOf(entry.Name())
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			unread = errors.Join(unread, err)
		case own.ID == id && !e.copied(own, entry.Name()):
			found = append(found, e.place(id, entry.Name()))
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
func (e *Engine) identityOf(name string, runs bool) (string, error) {
	e.naming.Lock()
	defer e.naming.Unlock()
	own, err := e.ownOf(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	switch {
	case err == nil && own.Name == name:
		return own.ID, nil
	case err == nil && !e.copied(own, name):
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
	return own.ID, durable.Save(e.place("", name).own(), own)
}

// monitors returns the names of containers that have a monitor of LXC, which listens on an abstract socket.
func (e *Engine) monitors() (map[string]bool, error) {
	file, err := os.Open("/proc/net/unix")
	if err != nil {
		return nil, fmt.Errorf("look for LXC's monitors: %w", err)
	}
	defer file.Close()
	found := map[string]bool{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		_, path, ok := strings.Cut(lines.Text(), "@"+e.config.Path+"/")
		name, isCommand := strings.CutSuffix(path, "/command")
		if ok && isCommand {
			found[name] = true
		}
	}
	return found, lines.Err()
}

// firstProcess asks LXC for the PID of a container's first process; 0 if it does not run.
func (e *Engine) firstProcess(ctx context.Context, name string, limit patience.Limit) (int, error) {
	out, err := e.toolWithin(ctx, limit, "lxc-info", name, "-p", "-H")
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(out)
	if text == "" {
		return 0, nil
	}
	pid, err := strconv.Atoi(text)
	if err != nil || pid < 1 {
		return 0, fmt.Errorf("lxc-info says %.40q, want the pid of container %s", text, name)
	}
	return pid, nil
}
