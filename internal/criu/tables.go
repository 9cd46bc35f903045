package criu

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// tables gives CRIU tables of mappings in place of /proc/PID/smaps. CRIU runs in a mount namespace of its
// own, in which FIFOs cover these files. So nobody else sees them, and they end with CRIU. A FIFO makes
// CRIU wait for a table that is made while CRIU does its earlier work.
type tables struct {
	pageSize uint64
	used     bool // also cut mappings that have pages
	of       []*table
	stopped  atomic.Bool
	serving  sync.WaitGroup
}

// table is the table of one process.
type table struct {
	pid  int
	path *os.File // of the FIFO

	mu     sync.Mutex
	writer *os.File // nil: nobody reads
	id     int      // of the process in the images; 0: nobody has read its table
	cut    []PageRange
	err    error
}

// hideTables puts FIFOs over the tables of processes, in the mount namespace of this thread alone and of
// programs that it starts from now on. dir is an empty directory. If that is impossible, hideTables returns
// nil: then CRIU examines everything, which takes longer.
func hideTables(dir string, pids []int, used bool) (*tables, error) {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("tmpfs", dir, "tmpfs", flags, "mode=0700,size=64k"); err != nil {
		return nil, nil //nolint:nilerr // as is said above
	}
	t := &tables{pageSize: uint64(os.Getpagesize()), used: used}
	for _, pid := range pids {
		one, err := hideTable(dir, pid)
		if err != nil {
			return nil, t.uncover()
		}
		if one != nil {
			t.of = append(t.of, one)
		}
	}
	return t, nil
}

// uncover removes what was put over tables so far.
func (t *tables) uncover() error {
	t.close()
	for _, one := range t.of {
		err := unix.Unmount(fmt.Sprintf("/proc/%d/smaps", one.pid), unix.MNT_DETACH)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("uncover the table of mappings of process %d: %w", one.pid, err)
		}
	}
	return nil
}

// hideTable returns nil if the process has ended.
func hideTable(dir string, pid int) (*table, error) {
	fifo := filepath.Join(dir, strconv.Itoa(pid))
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		return nil, fmt.Errorf("make a FIFO for a table of mappings: %w", err)
	}
	// Opened through /proc by number, because its name is in another namespace.
	path, err := os.OpenFile(fifo, unix.O_PATH, 0)
	if err != nil {
		return nil, fmt.Errorf("open a FIFO for a table of mappings: %w", err)
	}
	err = unix.Mount(fifo, fmt.Sprintf("/proc/%d/smaps", pid), "", unix.MS_BIND, "")
	if err == nil {
		return &table{pid: pid, path: path}, nil
	}
	_ = path.Close() // it was not used
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return nil, fmt.Errorf("put a FIFO over the table of mappings of process %d: %w", pid, err)
}

// serve starts making the tables and passing them to CRIU. The processes are stopped.
func (t *tables) serve() {
	for _, one := range t.of {
		t.serving.Go(func() { one.serve(t) })
	}
}

// noTable is a table that CRIU refuses.
const noTable = "0-0 there is no table\n"

// serve makes the table, and passes it to each reader until the service ends.
func (o *table) serve(t *tables) {
	content, err := o.make(t)
	for err == nil && !t.stopped.Load() {
		err = o.give(t, content)
	}
	o.fail(err)
}

// make makes the table. If that fails, CRIU gets a table that makes its dump fail. An ended process needs
// none.
func (o *table) make(t *tables) ([]byte, error) {
	process, err := kernel.ReadProcess(o.pid)
	var content []byte
	var cut []PageRange
	if err == nil {
		content, cut, err = cutTable(o.pid, t.pageSize, t.used)
	}
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			o.fail(err)
		}
		return []byte(noTable), nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.id, o.cut = process.NamespaceID, cut
	return content, nil
}

func (o *table) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = errors.Join(o.err, err)
}

// give waits until somebody opens the FIFO, and writes the table to it.
func (o *table) give(t *tables, content []byte) error {
	name := fmt.Sprintf("/proc/self/fd/%d", o.path.Fd())
	w, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("give CRIU the mappings of process %d: %w", o.pid, err)
	}
	o.mu.Lock()
	o.writer = w
	o.mu.Unlock()
	if !t.stopped.Load() {
		_, err = w.Write(content)
	}
	o.mu.Lock()
	o.writer = nil
	err = errors.Join(err, w.Close())
	o.mu.Unlock()
	if err != nil && !t.stopped.Load() {
		return fmt.Errorf("give CRIU the mappings of process %d: %w", o.pid, err)
	}
	// Until this reader has closed the FIFO, it would also get the table for the next reader.
	for !t.stopped.Load() {
		again, err := os.OpenFile(name, os.O_WRONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return nil //nolint:nilerr // ENXIO: nobody reads it; another error comes again at the opening
		}
		_ = again.Close() // nothing was written
		time.Sleep(time.Millisecond)
	}
	return nil
}

// close ends the service, after CRIU has ended or to make its dump fail.
func (t *tables) close() {
	t.stopped.Store(true)
	var readers []*os.File
	for _, one := range t.of {
		one.mu.Lock()
		if one.writer != nil {
			_ = one.writer.SetWriteDeadline(time.Unix(1, 0)) // fails only on a closed file
		}
		one.mu.Unlock()
		// Wakes those who wait for a reader.
		r, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", one.path.Fd()), os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err == nil {
			readers = append(readers, r)
		}
	}
	t.serving.Wait()
	for _, one := range t.of {
		readers = append(readers, one.path)
	}
	for _, r := range readers {
		_ = r.Close() // nothing was read
	}
}

// failed returns why CRIU did not get its tables; nil if it did.
func (t *tables) failed() error {
	var errs []error
	for _, one := range t.of {
		one.mu.Lock()
		errs = append(errs, one.err)
		one.mu.Unlock()
	}
	return errors.Join(errs...)
}

// mend corrects the images, and lists what was cut.
func (t *tables) mend(imagesDir string) ([]LazyMemory, error) {
	if err := t.failed(); err != nil {
		return nil, err
	}
	var all []LazyMemory
	for _, one := range t.of {
		one.mu.Lock()
		id, cut := one.id, one.cut
		one.mu.Unlock()
		if id == 0 {
			continue
		}
		if err := mendMappings(imagesDir, id, cut, t.pageSize); err != nil {
			return nil, err
		}
		if len(cut) > 0 {
			all = append(all, LazyMemory{PID: uint32(id), Ranges: cut})
		}
	}
	slices.SortFunc(all, func(a, b LazyMemory) int { return int(a.PID) - int(b.PID) })
	return all, nil
}
