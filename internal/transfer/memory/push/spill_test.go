package push

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/postcopy"
	"github.com/godwit/godwit/internal/migration"
)

const (
	testMigration = "0123456789abcdef"
	spillName     = "spill"
)

// keyKeeper is a target that keeps a key, and can be out of reach.
type keyKeeper struct {
	mu    sync.Mutex
	key   []byte
	away  int  // so many calls fail
	older bool // it keeps nothing
}

func (k *keyKeeper) exchange(_ context.Context, key []byte) (kept postcopy.SpillKey, known bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.away > 0 {
		k.away--
		return kept, false, errors.New("it does not answer")
	}
	if len(key) > 0 && !k.older {
		k.key = bytes.Clone(key)
	}
	return kept, copy(kept[:], k.key) == len(kept), nil
}

// numbered are pages of which each says where it is. They can be lost.
type numbered struct {
	mu   sync.Mutex
	lost bool
}

func (n *numbered) Read(_ memory.Task, address uint64, buffer []byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.lost {
		return errors.New("no process")
	}
	for i := range buffer {
		buffer[i] = byte((address + uint64(i)) >> 12)
	}
	return nil
}

func newTestSpill(t *testing.T, path string, k *keyKeeper) *Spill {
	note := func(what string) { t.Log(what) }
	p := NewSpill(SpillConfig{Path: path, Migration: testMigration, Exchange: k.exchange, Note: note})
	t.Cleanup(func() {
		p.Halt()
		_ = p.Close()
	})
	return p
}

func remoteOf(pages uint64) []memory.TaskMap {
	return []memory.TaskMap{{Task: 1, Areas: []memory.Area{{Start: 1 << 20, Pages: pages}}}}
}

// readsFromDisk wants that a page comes from the disk as it was.
func readsFromDisk(t *testing.T, p *Spill) {
	t.Helper()
	got, want := make([]byte, memory.PageSize()), make([]byte, memory.PageSize())
	at := uint64(1<<20 + 7*memory.PageSize())
	if err := p.instead(errors.New("gone"), 1, at, got); err != nil {
		t.Fatal(err)
	}
	_ = (&numbered{}).Read(1, at, want)
	if !bytes.Equal(got, want) || p.State() != migration.SpillServing {
		t.Errorf("another page came from the disk; it is %s", p.State())
	}
}

// TestSpillOutlivesAgent writes pages, loses the writer, and reads them with the key that the target has
// kept.
func TestSpillOutlivesAgent(t *testing.T) {
	path, k := filepath.Join(t.TempDir(), spillName), &keyKeeper{away: 1}
	first := newTestSpill(t, path, k)
	first.Begin(t.Context(), remoteOf(100), &numbered{})
	<-first.written
	if first.State() != migration.SpillComplete {
		t.Fatalf("it is %s: %s", first.State(), first.why)
	}
	second := newTestSpill(t, path, k)
	if err := second.Recover(t.Context(), true); err != nil || second.State() != migration.SpillComplete {
		t.Fatalf("it is %s: %s; %v", second.State(), second.why, err)
	}
	readsFromDisk(t, second)
}

// TestSpillKeyLost says so, and writes anew if the processes are still there.
func TestSpillKeyLost(t *testing.T) {
	path, k := filepath.Join(t.TempDir(), spillName), &keyKeeper{}
	first := newTestSpill(t, path, k)
	first.Begin(t.Context(), remoteOf(100), &numbered{})
	<-first.written
	k.key = nil
	second := newTestSpill(t, path, k)
	if err := second.Recover(t.Context(), true); err != nil || second.State() != migration.SpillFailed {
		t.Fatalf("without a key it is %s; %v", second.State(), err)
	}
	err := second.instead(errors.New("gone"), 1, 1<<20, make([]byte, memory.PageSize()))
	if err == nil || !strings.Contains(err.Error(), "memory of both agents") {
		t.Errorf("read without a key: %v", err)
	}
	second.Begin(t.Context(), remoteOf(100), &numbered{})
	<-second.written
	readsFromDisk(t, second)
}

// TestSpillFails tells why there is nothing on the disk, and leaves nothing there.
func TestSpillFails(t *testing.T) {
	for name, c := range map[string]struct {
		pages  *numbered
		remote []memory.TaskMap
		keeper *keyKeeper
		want   string
	}{
		"no pages": {&numbered{lost: true}, remoteOf(10), &keyKeeper{}, "no process"},
		"no room":  {&numbered{}, remoteOf(1 << 40), &keyKeeper{}, "free"},
		"no key":   {&numbered{}, remoteOf(10), &keyKeeper{older: true}, "did not store"},
		"wrong maps": {
			&numbered{}, []memory.TaskMap{{Task: 1, Areas: []memory.Area{{Start: 1, Pages: 1}}}},
			&keyKeeper{}, "map",
		},
	} {
		path := filepath.Join(t.TempDir(), spillName)
		p := newTestSpill(t, path, c.keeper)
		p.Begin(t.Context(), c.remote, c.pages)
		<-p.written
		if p.State() != migration.SpillFailed || !strings.Contains(p.why, c.want) {
			t.Errorf("%s: %s, %q", name, p.State(), p.why)
		}
		if left, err := os.Lstat(postcopy.SpillBegun(path)); err == nil && left.Size() > 0 {
			t.Errorf("%s: %d bytes of what was begun are left", name, left.Size())
		}
	}
}

// TestSpillFailureNoted lets whoever holds the lock of the notes ask for the state: readers of a report do.
func TestSpillFailureNoted(t *testing.T) {
	p := newTestSpill(t, filepath.Join(t.TempDir(), spillName), &keyKeeper{})
	noted := make(chan migration.SpillState, 1)
	p.config.Note = func(string) { noted <- p.State() }
	go p.Fail("the disk is full")
	select {
	case state := <-noted:
		if state != migration.SpillFailed {
			t.Errorf("it is %s", state)
		}
	case <-time.After(time.Minute):
		t.Fatal("the note waits for the lock of the state")
	}
}

// slowPages are pages of which none comes before the reader is told to end.
type slowPages struct {
	numbered
	asked chan struct{}
	ended <-chan struct{}
}

func (s *slowPages) Read(task memory.Task, address uint64, buffer []byte) error {
	close(s.asked)
	<-s.ended
	return s.numbered.Read(task, address, buffer)
}

// TestSpillStopped ends an agent that writes. The next one knows that a spill is wanted, and writes it.
func TestSpillStopped(t *testing.T) {
	path, k := filepath.Join(t.TempDir(), spillName), &keyKeeper{}
	ctx, stop := context.WithCancel(t.Context())
	pages := &slowPages{asked: make(chan struct{}), ended: ctx.Done()}
	first := newTestSpill(t, path, k)
	first.Begin(ctx, remoteOf(100), pages)
	<-pages.asked
	stop()
	<-first.written
	if _, err := os.Lstat(postcopy.SpillBegun(path)); err != nil {
		t.Fatalf("nothing says that a spill is wanted: %v", err)
	}
	second := newTestSpill(t, path, k)
	if err := second.Recover(t.Context(), true); err != nil || second.State() != migration.SpillFailed {
		t.Fatalf("it is %s; %v", second.State(), err)
	}
	second.Begin(t.Context(), remoteOf(100), &numbered{})
	<-second.written
	readsFromDisk(t, second)
}

// TestSpillFirstReason: the error still says why the copy on the disk cannot be read when the pages cannot be
// written again, either.
func TestSpillFirstReason(t *testing.T) {
	path := filepath.Join(t.TempDir(), spillName)
	first := newTestSpill(t, path, &keyKeeper{})
	first.Begin(t.Context(), remoteOf(100), &numbered{})
	<-first.written
	second := newTestSpill(t, path, &keyKeeper{}) // a target that was started again
	if err := second.Recover(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	second.Begin(t.Context(), remoteOf(100), &numbered{lost: true})
	<-second.written
	err := second.instead(errors.New("read"), memory.Task(1), 1<<20, make([]byte, memory.PageSize()))
	wanted := []string{"its key was in the memory of both agents", "could not be written again", "no process"}
	for _, want := range wanted {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
}

// TestSpillTargetAway waits for a target that may be back, and forgets nothing that it has not asked for.
func TestSpillTargetAway(t *testing.T) {
	path, k := filepath.Join(t.TempDir(), spillName), &keyKeeper{}
	first := newTestSpill(t, path, k)
	first.Begin(t.Context(), remoteOf(100), &numbered{})
	<-first.written
	k.away = 1
	second := newTestSpill(t, path, k)
	if err := second.Recover(t.Context(), true); err == nil {
		t.Fatal("a target that does not answer is believed to have no key")
	}
	if err := second.Recover(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	readsFromDisk(t, second)
}

// TestSpillUnreadable: a disk that cannot be read does not stand in the way of processes that can be, and is
// tried again if the processes are lost. The file stays.
func TestSpillUnreadable(t *testing.T) {
	path, k := filepath.Join(t.TempDir(), spillName), &keyKeeper{key: make([]byte, len(postcopy.SpillKey{}))}
	if err := os.Mkdir(path, 0o700); err != nil { // to read it fails, and not because of what is in it
		t.Fatal(err)
	}
	p := newTestSpill(t, path, k)
	if err := p.Recover(t.Context(), false); err != nil || p.State() != migration.SpillFailed || p.Whole() {
		t.Errorf("beside the processes it is %s: %v", p.State(), err)
	}
	failed := p.instead(errors.New("gone"), 1, 1<<20, nil)
	if failed == nil || !strings.Contains(failed.Error(), "directory") {
		t.Errorf("the reason is not told: %v", failed)
	}
	if err := p.Recover(t.Context(), true); !errors.Is(err, unix.EISDIR) {
		t.Errorf("as the only copy: %v", err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
}

// movingPages are pages during whose reading something happens.
type movingPages struct {
	numbered
	once sync.Once
	do   func()
}

func (m *movingPages) Read(task memory.Task, address uint64, buffer []byte) error {
	m.once.Do(m.do)
	return m.numbered.Read(task, address, buffer)
}

// TestSpillNotOpened: a whole file that cannot be opened for the moment stays.
func TestSpillNotOpened(t *testing.T) {
	dir := t.TempDir()
	path, content := filepath.Join(dir, spillName), filepath.Join(dir, "content")
	if err := os.Symlink(content, postcopy.SpillBegun(path)); err != nil {
		t.Fatal(err)
	}
	var swapped error
	p := newTestSpill(t, path, &keyKeeper{})
	p.Begin(t.Context(), remoteOf(10), &movingPages{do: func() {
		swapped = errors.Join(os.Remove(content), os.Mkdir(content, 0o700)) // it opens, but cannot be read
	}})
	<-p.written
	if swapped != nil || p.State() != migration.SpillFailed || !strings.Contains(p.why, "directory") {
		t.Fatalf("it is %s: %s; %v", p.State(), p.why, swapped)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the file is gone: %v", err)
	}
}
