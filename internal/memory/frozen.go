package memory

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Frozen reads the memory of frozen processes: the pages that stayed when the rest went (Source.Leave). It
// does not know what was sent, so it can be opened again at any time, even by another agent. It changes
// nothing in the processes: memory that they share copy-on-write stays shared. It is safe for concurrent
// use.
type Frozen struct{ tasks map[Task]frozenTask }

type frozenTask struct {
	pid    int
	name   string
	memory *os.File
}

// OpenFrozen opens the memory of processes. It leaves out processes without memory: zombies, and ended
// ones.
func OpenFrozen(pids []int) (*Frozen, error) {
	f := &Frozen{tasks: map[Task]frozenTask{}}
	for _, pid := range pids {
		if err := f.open(pid); err != nil {
			return nil, errors.Join(fmt.Errorf("open the memory of process %d: %w", pid, err), f.Close())
		}
	}
	return f, nil
}

func (f *Frozen) open(pid int) error {
	t, err := openTask(pid)
	if t == nil || err != nil {
		return err
	}
	memory, err := t.space.OpenMemory()
	if err := errors.Join(ignoreGone(err), t.close()); err != nil || memory == nil {
		return err
	}
	if other, is := f.tasks[t.id]; is {
		return errors.Join(fmt.Errorf("process %d has the number %d in its pid namespace too", other.pid,
			t.id), memory.Close())
	}
	f.tasks[t.id] = frozenTask{pid: pid, name: t.name, memory: memory}
	return nil
}

// Read reads whole pages, as many as fit into the buffer. The error names the task and the unreadable
// address.
func (f *Frozen) Read(task Task, address uint64, buffer []byte) error {
	size := uint64(PageSize())
	if address%size != 0 || uint64(len(buffer))%size != 0 || address >= maxAddress ||
		uint64(len(buffer)) > maxAddress-address {
		return fmt.Errorf("read %d bytes at %#x of task %d: no whole pages of a process", len(buffer),
			address, task)
	}
	t, is := f.tasks[task]
	if !is {
		return fmt.Errorf("read the page at %#x of task %d: no process with memory has this number", address,
			task)
	}
	n, err := t.memory.ReadAt(buffer, int64(address))
	if n == len(buffer) {
		return nil
	}
	at := address + uint64(n)/size*size
	switch {
	case errors.Is(err, io.EOF):
		err = errors.New("its memory is gone: it has ended, or called execve")
	case errors.Is(err, unix.EIO):
		err = errors.New("nothing is there")
	}
	return fmt.Errorf("read the page at %#x of task %d, process %d (%s): %w", at, task, t.pid, t.name, err)
}

// Close waits for Reads in progress and closes the memory.
func (f *Frozen) Close() error {
	var errs []error
	for _, t := range f.tasks {
		errs = append(errs, t.memory.Close())
	}
	return errors.Join(errs...)
}
