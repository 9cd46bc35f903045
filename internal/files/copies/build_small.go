package copies

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/guard"
)

// Creating a file takes the kernel longer than everything else in a round of many small files, so several
// goroutines do it. They create new regular files of up to inlineSize, without holes and with one name, in
// directories that are also new. The reader of the round does everything else, in order. Nothing there
// needs such a file except its directory, whose attributes are set after its last file.

// nursery creates small files.
type nursery struct {
	next    *batch      // of collected files
	small   *fsys.Entry // the file whose content is being collected; nil: none
	begin   int         // beginning of its content in the batch's data
	work    chan *batch
	free    chan *batch
	pending sync.WaitGroup // batches that are under way
	running sync.WaitGroup
	failed  atomic.Pointer[error] // the first error: nothing after it is done
}

// batch is a group of small files, which one goroutine creates.
type batch struct {
	files []smallFile
	data  []byte
}

type smallFile struct {
	entry *fsys.Entry
	dir   *growing
	data  []byte
}

// growing is a directory in which files are being created.
type growing struct {
	fd    int
	tree  string // the tree's path
	path  string // in it, for messages
	users atomic.Int32
	entry *fsys.Entry // set before the builder, as one of the users, lets it go; nil: it gets no attributes
}

// collects reports whether the content of a new file is to be collected. Each directory with files in
// progress is held open.
func collects(at *position, entry *fsys.Entry) bool {
	return entry.Links == 0 && entry.Size <= inlineSize && at.spot().made && at.Depth() <= fsys.OpenLevels &&
		!heavy(entry)
}

// heavy reports whether an entry itself takes so much memory that it must not wait beside many others.
func heavy(entry *fsys.Entry) bool {
	const most = 4 << 10
	size := 0
	for _, x := range entry.Xattrs {
		size += len(x.Name) + len(x.Value)
	}
	return size > most
}

// collect begins to collect the content of a new file.
func (n *nursery) collect(entry *fsys.Entry) error {
	if n.next != nil && (len(n.next.files) >= batchNames || len(n.next.data)+int(entry.Size) > batchBytes) {
		if err := n.flush(); err != nil {
			return err
		}
	}
	if n.next == nil {
		n.next = n.empty()
	}
	n.small, n.begin = entry, len(n.next.data)
	return nil
}

// collected is called when the content of a file in a directory is collected.
func (n *nursery) collected(dir *growing, used *files.Usage) error {
	if !used.Room(n.small.Size) {
		return used.Full()
	}
	used.Bytes += n.small.Size
	dir.users.Add(1)
	n.next.files = append(n.next.files, smallFile{n.small, dir, n.next.data[n.begin:]})
	n.small = nil
	return nil
}

// uncollect creates a partly collected file at once: it turned out to be one that the goroutines cannot
// create.
func (b *builder) uncollect() error {
	n := &b.nursery
	entry, data := n.small, n.next.data[n.begin:]
	n.small, n.next.data = nil, n.next.data[:n.begin]
	err := b.create(b.at.Fd(), entry)
	if err == nil && len(data) > 0 {
		err = b.Data(0, data)
	}
	return err
}

// empty returns a batch for further files. There are as many as may be in progress, and the one being
// collected.
func (n *nursery) empty() *batch {
	if n.work == nil {
		n.start(min(runtime.NumCPU(), maxWorkers))
	}
	return <-n.free
}

func (n *nursery) start(workers int) {
	batches := 2*workers + 1
	n.work, n.free = make(chan *batch, batches), make(chan *batch, batches)
	for range batches {
		n.free <- &batch{data: make([]byte, 0, batchBytes)}
	}
	for range workers {
		n.running.Go(func() {
			for b := range n.work {
				n.fail(guard.Do(func() error {
					n.make(b)
					return nil
				}))
				clear(b.files)
				b.files, b.data = b.files[:0], b.data[:0]
				n.free <- b
				n.pending.Done()
			}
		})
	}
}

// flush passes collected files on.
func (n *nursery) flush() error {
	if n.next != nil && len(n.next.files) > 0 {
		n.pending.Add(1)
		n.work <- n.next // which has room for all
		n.next = nil
	}
	return n.error()
}

// wait returns when all collected files exist. It is for records that may concern them, or a directory of
// them.
func (n *nursery) wait() error {
	if n.work == nil {
		return nil
	}
	if err := n.flush(); err != nil {
		return err
	}
	n.pending.Wait()
	return n.error()
}

func (n *nursery) error() error {
	if err := n.failed.Load(); err != nil {
		return *err
	}
	return nil
}

func (n *nursery) fail(err error) {
	if err != nil {
		n.failed.CompareAndSwap(nil, &err)
	}
}

// end returns when no files are being created any more. Files that were not waited for may or may not
// exist.
func (n *nursery) end(err error) {
	if n.work == nil {
		return
	}
	n.fail(err)
	_ = n.flush() // so that the directories are let go
	close(n.work)
	n.running.Wait()
	n.next, n.small, n.work, n.free = nil, nil, nil, nil
}

// make creates the files of a batch.
func (n *nursery) make(b *batch) {
	for i := range b.files {
		f := &b.files[i]
		if n.failed.Load() == nil {
			n.fail(f.make())
		}
		n.fail(f.dir.done(n.failed.Load() != nil))
	}
}

func (f *smallFile) make() error {
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	// Nobody else sees it: directories created with it are for their owner only until they are complete.
	fd, err := unix.Openat(f.dir.fd, f.entry.Name, flags, f.entry.Mode&0o777)
	if err != nil {
		return f.dir.failed("create", f.entry, err)
	}
	defer unix.Close(fd)
	if len(f.data) > 0 {
		if err := writeFull(fd, f.data, 0); err != nil {
			return f.dir.failed("write", f.entry, err)
		}
	}
	if err := fsys.AttributesOfNew(fd, f.entry); err != nil {
		return f.dir.failed("complete", f.entry, err)
	}
	return nil
}

// done releases a directory. The last user completes it, unless that is useless.
func (d *growing) done(useless bool) error {
	if d == nil || d.users.Add(-1) > 0 {
		return nil
	}
	defer unix.Close(d.fd)
	if d.entry == nil || useless {
		return nil
	}
	if err := fsys.AttributesOfNew(d.fd, d.entry); err != nil {
		return fmt.Errorf("complete the directory %q in %s: %w", d.path, d.tree, err)
	}
	return nil
}

func (d *growing) failed(what string, entry *fsys.Entry, err error) error {
	return fmt.Errorf("%s %q in %s: %w", what, d.path+entry.Name, d.tree, space(d.tree, entry.Stored, err))
}
