package lxc

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
)

// collectGarbage forgets containers that lxc-destroy has removed; it does not report that.
func (e *Engine) collectGarbage() error {
	for _, directory := range []string{e.config.StateDir, e.config.RunDir} {
		entries, err := os.ReadDir(filepath.Join(directory, "lxc"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, entry := range entries {
			if !idPattern.MatchString(entry.Name()) {
				continue
			}
			if err := e.forgetRemoved(entry.Name()); err != nil {
				return err
			}
		}
	}
	return nil
}

// forgetRemoved forgets a container that LXC has not, and that does not move. What is being done
// with one is awaited by the next look.
func (e *Engine) forgetRemoved(id string) error {
	unlock, free := e.locks.TryLock(id)
	if !free {
		return nil
	}
	defer unlock()
	p := e.place(id, "")
	if durable.Exists(p.arrival()) || durable.Exists(p.departure()) {
		return nil
	}
	if _, err := e.find(id); !errors.Is(err, engine.ErrNotFound) {
		return nil //nolint:nilerr // it is there, or may be: who asks for it is told
	}
	return p.forget()
}
