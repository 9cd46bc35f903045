package memory

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/await"
	"github.com/godwit/godwit/internal/kernel"
)

// TestShared: a final round finds pages of shared memory written since the last round: by processes that
// have it mapped, by processes that map it briefly, and by children that have ended.
func TestShared(t *testing.T) {
	for _, kind := range []string{"plain", "fork", "sealed"} {
		t.Run(kind, func(t *testing.T) {
			p := start(t, "shared", 4, 2, "50", kind)
			s := NewSource(SourceConfig{Processes: p.group.Procs})
			defer s.Close()
			store, err := NewStore(1 << 30)
			must(t, err)
			defer store.Close()
			for range 5 {
				_, err := s.Round(t.Context(), store)
				must(t, err)
				await.True(t, "a write", func() bool { return differs(t, s, store) != "" })
				finalShared(t, p, s, store)
				wantShared(t, s, store, 3)
				must(t, p.group.Thaw())
			}
		})
	}
}

// TestSharedIdle: nothing is compared in the freeze if nothing can have been written.
func TestSharedIdle(t *testing.T) {
	p := start(t, "shared", 4, 2, "100000000", "plain")
	s := NewSource(SourceConfig{Processes: p.group.Procs})
	defer s.Close()
	store, err := NewStore(1 << 30)
	must(t, err)
	defer store.Close()
	for deadline := time.Now().Add(10 * time.Second); ; {
		_, err := s.Round(t.Context(), store)
		must(t, err)
		stats := finalShared(t, p, s, store)
		wantShared(t, s, store, 3)
		must(t, p.group.Thaw())
		if stats.ComparedPages == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d pages are compared: %s", stats.ComparedPages, s.shared.unseen())
		}
		time.Sleep(100 * time.Millisecond) // the process has just begun
	}
}

// TestSharedGivenBack: a page is sent if its mapping was dropped after the page was written.
func TestSharedGivenBack(t *testing.T) {
	p := start(t, "script", 0, 0)
	tell := func(command string) {
		t.Helper()
		if answer := p.obey(command); answer != "ok" {
			t.Fatalf("%s: %s", command, answer)
		}
	}
	tell("share 0 256")
	tell("write 0 256 1")
	s := NewSource(SourceConfig{Processes: p.group.Procs})
	defer s.Close()
	store, err := NewStore(1 << 30)
	must(t, err)
	defer store.Close()
	// the first round finds the memory, and later its times show that no system call wrote to it
	for i := range 3 {
		await.True(t, "times that are old", func() bool { return timesOld(t, s) })
		_, err := s.Round(t.Context(), store)
		must(t, err)
		tell(fmt.Sprintf("write 0 10 %d", 100+i))
		tell("drop 0 15")
	}
	finalShared(t, p, s, store)
	wantShared(t, s, store, 1)
	must(t, p.group.Thaw())
}

func finalShared(t *testing.T, p *program, s *Source, store *Store) RoundStats {
	t.Helper()
	_, err := p.group.Freeze(context.Background())
	must(t, err)
	_, err = s.Shared()
	must(t, err)
	stats, err := s.Final(t.Context(), store)
	must(t, err)
	return stats
}

// timesOld reports whether the times of shared memory are so old that a change shows.
func timesOld(t *testing.T, s *Source) bool {
	t.Helper()
	for _, o := range s.shared.objects {
		var info unix.Stat_t
		must(t, unix.Fstat(int(o.file.Fd()), &info))
		changed, modified := time.Unix(info.Ctim.Unix()), time.Unix(info.Mtim.Unix())
		if min(time.Since(changed), time.Since(modified)) <= timesStable {
			return false
		}
	}
	return true
}

// wantShared checks that a store has the current content of shared memory.
func wantShared(t *testing.T, s *Source, store *Store, least int) {
	t.Helper()
	if len(s.shared.objects) < least {
		t.Fatalf("there are %d objects", len(s.shared.objects))
	}
	if what := differs(t, s, store); what != "" {
		t.Fatal(what)
	}
}

// differs describes a page of shared memory whose present content a store does not have; "": it has all.
func differs(t *testing.T, s *Source, store *Store) string {
	t.Helper()
	is, got := make([]byte, PageSize()), make([]byte, PageSize())
	for _, o := range s.shared.objects {
		data, err := kernel.DataRanges(o.file)
		must(t, err)
		for _, part := range data {
			for at := part.Start; at < wholePages(part.End); at += uint64(PageSize()) {
				n, _ := o.file.ReadAt(is, int64(at)) // the last page ends early
				clear(is[n:])
				there, err := store.ReadPage(o.Task, at, got)
				must(t, err)
				if !there || !bytes.Equal(is, got) {
					return fmt.Sprintf("%q at %#x: sent %v %s, is %s", o.Name, at, there, head(got), head(is))
				}
			}
		}
	}
	return ""
}

func head(page []byte) string { return fmt.Sprintf("%x…", page[:24]) }

// TestUse: memory that processes share copy-on-write is counted once and for each of them.
func TestUse(t *testing.T) {
	p := start(t, "shared", 4, 3, "100000000", "heap")
	s := NewSource(SourceConfig{Processes: p.group.Procs})
	defer s.Close()
	_, err := s.Round(t.Context(), discard{})
	must(t, err)
	use, err := s.Use()
	must(t, err)
	const heap = 16 << 20 // written by the first process before it forked
	if use.Whole < 4*heap || use.Parts < heap || use.Parts > heap+heap/2 || use.Shared < 4<<20 {
		t.Errorf("%+v, want four times %d, once, and 4 MiB or more", use, heap)
	}
}

type discard struct{}

func (discard) Put(Run, []byte) error { return nil }
