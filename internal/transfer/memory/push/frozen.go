package push

import (
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/postcopy"
)

// Frozen has the memory of frozen processes; memory.Frozen does.
type Frozen interface {
	postcopy.Reader
	Close() error
}

// Copy is the memory of the frozen processes, as it was when they were frozen.
type Copy struct {
	Frozen
	Ran func() error // that they have since, so it is not that any more; nil: they have not
}

// Read implements postcopy.Reader.
func (c Copy) Read(task memory.Task, address uint64, buffer []byte) error {
	if err := c.Frozen.Read(task, address, buffer); err != nil {
		return err
	}
	return c.Ran() // looked at afterwards: the page may have changed just before
}

// stayed are the pages that stayed here: in the frozen processes, and perhaps on the disk.
type stayed struct {
	copied Copy
	spill  *Spill // nil: not on the disk
}

// Read implements postcopy.Reader.
func (p stayed) Read(task memory.Task, address uint64, buffer []byte) error {
	if err := p.copied.Read(task, address, buffer); err != nil {
		return p.spill.instead(err, task, address, buffer)
	}
	return nil
}

// Close lets go of the processes.
func (p stayed) Close() error { return p.copied.Close() }
