package push

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/postcopy"
	"github.com/godwit/godwit/internal/migration"
)

// SpillConfig is what a spill is made of.
type SpillConfig struct {
	Path      string // of the file
	Migration string
	// Exchange gives the target a key to keep, if there is one, and returns the one that the target keeps.
	Exchange func(ctx context.Context, key []byte) (kept postcopy.SpillKey, known bool, err error)
	Note     func(string) // for the report
}

// Spill is the copy on the source's disk of the pages that stayed there, for the case that the frozen
// processes are lost, by a reboot for example. Its key is never on a disk: the agents of both nodes have it
// in memory, so that after a reboot of one the other gives it back. A push needs no spill: whatever fails
// about it is told, and the pages go on to leave. Of a nil Spill nothing is on the disk.
type Spill struct {
	config SpillConfig

	mu      sync.Mutex
	state   migration.SpillState
	why     string            // there is no copy that can be read
	key     postcopy.SpillKey // of file
	file    *postcopy.Spilled // nil: there is no whole copy that can be read
	stop    context.CancelFunc
	written chan struct{} // closed when the writer has ended; nil: there is none
}

// NewSpill makes a spill of which nothing is on the disk, as far as is known.
func NewSpill(config SpillConfig) *Spill { return &Spill{config: config} }

// tellEvery is how often the target is asked to keep the key, as long as it cannot be reached.
const tellEvery = 500 * time.Millisecond

// Want leaves a file that says to an agent that is started again that a spill is wanted.
func (p *Spill) Want() {
	if err := os.WriteFile(postcopy.SpillBegun(p.config.Path), nil, 0o600); err != nil {
		p.Fail(err.Error())
	}
}

// Recover finds what an earlier agent has written. An error says that the target could not be asked, or that
// the disk could not be read and nothing else has the pages: both may be better the next time.
func (p *Spill) Recover(ctx context.Context, onlyCopy bool) error {
	key, known, err := p.config.Exchange(ctx, nil)
	if err != nil {
		return err
	}
	// it says whether there is one, also without a key
	file, err := postcopy.OpenSpill(p.config.Path, key, p.config.Migration)
	mayBeBetter := err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, postcopy.ErrSealed)
	if mayBeBetter && onlyCopy {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = migration.SpillFailed // but what is here to be read is written again
	switch {
	case errors.Is(err, fs.ErrNotExist):
		p.why = "the copy on the disk is incomplete"
	case !known:
		p.why = "the copy on the disk cannot be read: its key was in the memory of both agents, and both " +
			"were started again"
	case err != nil:
		p.why = "the copy on the disk cannot be read: " + err.Error()
	default:
		p.key, p.file, p.state = key, file, migration.SpillComplete
	}
	return nil
}

// Fail notes why there is no copy, or nobody else has its key.
func (p *Spill) Fail(why string) {
	p.mu.Lock()
	p.state, p.why = migration.SpillFailed, why
	p.mu.Unlock() // who reads the report holds the lock of the note, and asks for the state
	p.config.Note("remote pages are not safe on the disk of this node: " + why)
}

// Begin writes pages to the disk until ctx ends, if they are not there. It does not wait.
func (p *Spill) Begin(ctx context.Context, maps []memory.TaskMap, pages postcopy.Reader) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.file != nil || p.written != nil {
		return
	}
	ctx, p.stop = context.WithCancel(ctx)
	p.written = make(chan struct{})
	p.state = migration.SpillWriting
	written := p.written
	guard.Go(func() error {
		defer close(written)
		err := guard.Do(func() error { return p.write(ctx, maps, pages) })
		if err == nil || ctx.Err() != nil {
			return nil
		}
		p.failAgain(err)
		return err
	})
}

// failAgain notes that pages could not be written. If an earlier copy on the disk cannot be read, that stays
// the first reason.
func (p *Spill) failAgain(err error) {
	p.mu.Lock()
	why := p.why
	p.mu.Unlock()
	if why != "" {
		err = fmt.Errorf("%s; the pages could not be written again: %w", why, err)
	}
	p.Fail(err.Error())
}

// write writes all, and has the target keep the key.
func (p *Spill) write(ctx context.Context, maps []memory.TaskMap, pages postcopy.Reader) error {
	began, count := time.Now(), Count(maps)
	needed := postcopy.SpillBytes(count * int64(memory.PageSize()))
	if err := files.CheckSpace(filepath.Dir(p.config.Path), needed); err != nil {
		return err
	}
	key, err := postcopy.NewSpillKey()
	if err == nil {
		err = postcopy.Spill(ctx, p.config.Path, key, p.config.Migration, maps, pages)
	}
	if err != nil {
		return err
	}
	file, err := postcopy.OpenSpill(p.config.Path, key, p.config.Migration)
	if errors.Is(err, postcopy.ErrSealed) {
		return errors.Join(err, postcopy.RemoveSpill(p.config.Path))
	}
	if err != nil {
		return err // the file says to the next agent that a spill is wanted
	}
	p.mu.Lock()
	p.key, p.file = key, file
	p.mu.Unlock()
	took := time.Since(began)
	for p.Tell(ctx) != nil { // the link may be down; nothing else is to be done
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(tellEvery):
		}
	}
	if p.State() != migration.SpillFailed {
		p.config.Note(fmt.Sprintf("the source wrote %d pages to its disk, encrypted, in %s: a reboot of the "+
			"source loses none of them", count, took.Round(time.Millisecond)))
	}
	return nil
}

// Tell has the target keep the key, which it has lost if its agent was started again. Doing nothing is
// success.
func (p *Spill) Tell(ctx context.Context) error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	key, whole := p.key, p.file != nil
	p.mu.Unlock()
	if !whole {
		return nil
	}
	_, known, err := p.config.Exchange(ctx, key[:])
	if err != nil {
		return err
	}
	if !known {
		p.Fail("the target did not store the key")
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state != migration.SpillServing {
		p.state = migration.SpillComplete
	}
	return nil
}

// Whole reports whether the pages can be read from the disk.
func (p *Spill) Whole() bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.file != nil
}

// State is how far it is.
func (p *Spill) State() migration.SpillState {
	if p == nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

// instead reads pages from the disk that could not be read from the processes.
func (p *Spill) instead(failed error, task memory.Task, address uint64, buffer []byte) error {
	if p == nil {
		return failed
	}
	p.mu.Lock()
	file, why := p.file, p.why
	if file != nil {
		p.state = migration.SpillServing
	}
	p.mu.Unlock()
	switch {
	case file == nil && why != "":
		return fmt.Errorf("%w; %s", failed, why)
	case file == nil:
		return fmt.Errorf("%w; the copy on the disk is incomplete", failed)
	}
	if err := file.Read(task, address, buffer); err != nil {
		return fmt.Errorf("%w; from the disk: %w", failed, err)
	}
	return nil
}

// Halt ends the writer. The file stays.
func (p *Spill) Halt() {
	if p == nil {
		return
	}
	p.mu.Lock()
	stop, written := p.stop, p.written
	p.mu.Unlock()
	if written != nil {
		stop()
		<-written
	}
}

// Close lets go of the file, when nobody reads it any more.
func (p *Spill) Close() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	file := p.file
	if p.file = nil; file == nil {
		return nil
	}
	return file.Close()
}
