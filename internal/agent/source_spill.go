package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/postcopy"
	"github.com/godwit/godwit/internal/migration"
)

// spill is the copy on this node's disk of the pages that stayed here, for the case that the frozen processes
// are lost, by a reboot for example. Its key is never on a disk: the agents of both nodes have it in memory,
// so that after a reboot of one the other gives it back. A push needs no spill: whatever fails about it is
// told, and the pages go on to leave.
type spill struct {
	path, migration string
	exchange        func(context.Context, []byte) (postcopy.SpillKey, bool, error) // with the target
	note            func(string)                                                   // for the report

	mu      sync.Mutex
	state   migration.SpillState
	why     string            // there is no copy that can be read
	key     postcopy.SpillKey // of file
	file    *postcopy.Spilled // nil: there is no whole copy that can be read
	stop    context.CancelFunc
	written chan struct{} // closed when the writer has ended; nil: there is none
}

// spillName is the file in the directory of a migration.
const spillName = "spill"

func (m *moves) spillPath(id string) string { return filepath.Join(m.dir(id), spillName) }

func (s *source) newSpill() *spill {
	return &spill{
		path: s.agent.moves.spillPath(s.id()), migration: s.id(),
		exchange: s.exchangeSpillKey, note: s.move.tracker.Decided,
	}
}

// exchangeSpillKey gives the target a key to keep, if there is one, and returns the one that it keeps.
func (s *source) exchangeSpillKey(ctx context.Context, key []byte) (
	kept postcopy.SpillKey, known bool, err error) {
	var reply *api.SpillReply
	err = s.control.ask(ctx, func(ctx context.Context, peer api.PeerClient) (err error) {
		reply, err = peer.Spill(ctx, &api.SpillRequest{Migration: s.id(), Key: key})
		return err
	})
	if status.Code(err) == codes.Unimplemented { // an older version runs there now, and the key is gone
		return kept, false, nil
	}
	if err != nil {
		return kept, false, fmt.Errorf("key of the pages on the disk: %s: %s", s.target.Name, plain(err))
	}
	return kept, copy(kept[:], reply.Key) == len(kept), nil
}

// recover finds what an earlier agent has written. An error says that the target could not be asked, or that
// the disk could not be read and nothing else has the pages: both may be better the next time.
func (p *spill) recover(ctx context.Context, onlyCopy bool) error {
	key, known, err := p.exchange(ctx, nil)
	if err != nil {
		return err
	}
	// it says whether there is one, also without a key
	file, err := postcopy.OpenSpill(p.path, key, p.migration)
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

// fail notes why there is no copy, or nobody else has its key.
func (p *spill) fail(why string) {
	p.mu.Lock()
	p.state, p.why = migration.SpillFailed, why
	p.mu.Unlock() // who reads the report holds the lock of the note, and asks for the state
	p.note("remote pages are not safe on the disk of this node: " + why)
}

// begin writes pages to the disk until ctx ends, if they are not there. It does not wait.
func (p *spill) begin(ctx context.Context, maps []memory.TaskMap, pages postcopy.Reader) {
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
func (p *spill) failAgain(err error) {
	p.mu.Lock()
	why := p.why
	p.mu.Unlock()
	if why != "" {
		err = fmt.Errorf("%s; the pages could not be written again: %w", why, err)
	}
	p.fail(err.Error())
}

// write writes all, and has the target keep the key.
func (p *spill) write(ctx context.Context, maps []memory.TaskMap, pages postcopy.Reader) error {
	began, count := time.Now(), countPages(maps)
	needed := postcopy.SpillBytes(count * int64(memory.PageSize()))
	if err := files.CheckSpace(filepath.Dir(p.path), needed); err != nil {
		return err
	}
	key, err := postcopy.NewSpillKey()
	if err == nil {
		err = postcopy.Spill(ctx, p.path, key, p.migration, maps, pages)
	}
	if err != nil {
		return err
	}
	file, err := postcopy.OpenSpill(p.path, key, p.migration)
	if errors.Is(err, postcopy.ErrSealed) {
		return errors.Join(err, postcopy.RemoveSpill(p.path))
	}
	if err != nil {
		return err // the file says to the next agent that a spill is wanted
	}
	p.mu.Lock()
	p.key, p.file = key, file
	p.mu.Unlock()
	took := time.Since(began)
	for p.tell(ctx) != nil { // the link may be down; nothing else is to be done
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(tickEvery):
		}
	}
	if p.now() != migration.SpillFailed {
		p.note(fmt.Sprintf("the source wrote %d pages to its disk, encrypted, in %s: a reboot of the "+
			"source loses none of them", count, took.Round(time.Millisecond)))
	}
	return nil
}

// tell has the target keep the key, which it has lost if its agent was started again. Doing nothing is
// success.
func (p *spill) tell(ctx context.Context) error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	key, whole := p.key, p.file != nil
	p.mu.Unlock()
	if !whole {
		return nil
	}
	_, known, err := p.exchange(ctx, key[:])
	if err != nil {
		return err
	}
	if !known {
		p.fail("the target did not store the key")
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state != migration.SpillServing {
		p.state = migration.SpillComplete
	}
	return nil
}

// whole tells whether the pages can be read from the disk.
func (p *spill) whole() bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.file != nil
}

// now is how far it is.
func (p *spill) now() migration.SpillState {
	if p == nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

// instead reads pages from the disk that could not be read from the processes.
func (p *spill) instead(failed error, task memory.Task, address uint64, buffer []byte) error {
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

// halt ends the writer. The file stays.
func (p *spill) halt() {
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

// close lets go of the file, when nobody reads it any more.
func (p *spill) close() error {
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

// frozenCopy is the memory of the frozen processes, as it was when they were frozen.
type frozenCopy struct {
	*memory.Frozen

	ran *atomic.Bool // they have since: it is not that any more
}

// Read implements postcopy.Reader.
func (c frozenCopy) Read(task memory.Task, address uint64, buffer []byte) error {
	if err := c.Frozen.Read(task, address, buffer); err != nil {
		return err
	}
	if c.ran.Load() { // looked at afterwards: the page may have changed just before
		return fmt.Errorf("%w, which has run: its memory has changed", engine.ErrThawed)
	}
	return nil
}

// stayed are the pages that stayed here: in the frozen processes, and perhaps on the disk.
type stayed struct {
	frozen frozenCopy
	spill  *spill // nil: not on the disk
}

// Read implements postcopy.Reader.
func (p stayed) Read(task memory.Task, address uint64, buffer []byte) error {
	if err := p.frozen.Read(task, address, buffer); err != nil {
		return p.spill.instead(err, task, address, buffer)
	}
	return nil
}

// Close lets go of the processes.
func (p stayed) Close() error { return p.frozen.Close() }

// openSpill has what follows be spilled, if that is wanted. The file that it makes says so to an agent that
// is started again.
func (s *source) openSpill() {
	if !s.settings.Get().Spill {
		return
	}
	s.spill = s.newSpill()
	if err := os.WriteFile(postcopy.SpillBegun(s.spill.path), nil, 0o600); err != nil {
		s.spill.fail(err.Error())
	}
}

// recoverSpill finds what an earlier agent has spilled, or was about to.
func (s *source) recoverSpill(ctx context.Context) error {
	path := s.agent.moves.spillPath(s.id())
	for _, name := range []string{path, postcopy.SpillBegun(path)} {
		if _, err := os.Lstat(name); err == nil && s.spill == nil {
			found := s.newSpill()
			if err := found.recover(ctx, !s.hasFrozen(ctx)); err != nil {
				return err
			}
			s.spill = found
		}
	}
	return nil
}

// endSpill removes what was spilled. The writer reads the frozen processes, and who serves reads the file:
// letGo ends that, between the two.
func (s *source) endSpill(letGo func() error) error {
	s.spill.halt()
	err := errors.Join(letGo(), s.spill.close())
	return errors.Join(err, postcopy.RemoveSpill(s.agent.moves.spillPath(s.id())))
}

// spillBytes is what pages that stay here may take on the disk; 0: they are not to be written there, or none
// stays.
func spillBytes(mode migration.Mode, settings migration.Settings, memoryBytes int64) int64 {
	if !settings.Spill || mode == migration.Cold || mode == migration.Restart {
		return 0
	}
	return postcopy.SpillBytes(memoryBytes)
}

// examineSpill looks whether there is room for so much. Nothing is asked of the disk if that is nothing.
func (a *Agent) examineSpill(needed int64) []engine.Problem {
	if needed == 0 {
		return nil
	}
	err := files.CheckSpace(a.config.StateDir, needed)
	if err == nil {
		return nil
	}
	return []engine.Problem{{
		What:   "disk of " + a.self.Name,
		Why:    "--spill needs room for the pages that follow: " + err.Error(),
		Remedy: "free space there, or move the container without --spill",
	}}
}

// keepsNoSpillKey is what stands against a target that cannot keep a key; nil: it can, or need not.
func keepsNoSpillKey(node string, needed int64, reservation *api.Reservation) *migration.Problem {
	if needed == 0 || reservation.GetKeepsSpillKey() {
		return nil
	}
	return &migration.Problem{
		What:   "--spill",
		Why:    node + " runs a version of godwit that does not keep the key of pages on this node's disk",
		Remedy: "upgrade " + node + ", or move the container without --spill",
	}
}

// examineSpillKey refuses a target that cannot keep the key, before anything moves.
func (s *source) examineSpillKey() error {
	s.mu.Lock()
	reservation := s.reservation
	s.mu.Unlock()
	needed := spillBytes(s.move.tracker.Spec.Mode, s.settings.Get(), s.offered.MemoryBytes)
	if problem := keepsNoSpillKey(s.target.Name, needed, reservation); problem != nil {
		return &problemsError{[]migration.Problem{*problem}}
	}
	return nil
}
