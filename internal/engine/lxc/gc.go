package lxc

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
)

// collectGarbage drops the records of containers that lxc-destroy has removed; lxc-destroy does not report
// that.
func (c *catalog) collectGarbage() error {
	for _, directory := range []string{c.config.StateDir, c.config.RunDir} {
		entries, err := os.ReadDir(filepath.Join(directory, "lxc"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, entry := range entries {
			if !idPattern.MatchString(entry.Name()) {
				continue
			}
			if err := c.forgetRemoved(entry.Name()); err != nil {
				return err
			}
		}
	}
	return nil
}

// forgetRemoved drops the record of a container that LXC no longer has, and that does not move. It skips a
// container with an operation in progress until the next call.
func (c *catalog) forgetRemoved(id string) error {
	unlock, free := c.locks.TryLock(id)
	if !free {
		return nil
	}
	defer unlock()
	p := c.identities.place(id, "")
	if durable.Exists(p.arrival()) || durable.Exists(p.departure()) {
		return nil
	}
	if _, err := c.identities.find(id); !errors.Is(err, engine.ErrNotFound) {
		return nil //nolint:nilerr // it is there, or may be: who asks for it is told
	}
	return p.forget()
}
