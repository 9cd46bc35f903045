package pager

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/await"
	"github.com/godwit/godwit/internal/memory"
)

// remoteImage is the image of a workload with seven of eight pages remote.
func remoteImage(t testing.TB, task memory.Task, megabytes int) *memory.Image {
	t.Helper()
	store, err := memory.NewStore(int64(megabytes)<<20 + 1<<20)
	must(t, err)
	all, remote := memory.TaskMap{Task: task}, memory.TaskMap{Task: task}
	for id := uint64(1); id <= arenas; id++ {
		for page := range megabytes << 20 / 4096 / arenas {
			if page%16 == 5 {
				continue
			}
			one := memory.Area{Start: arenaBase + id*arenaSpacing + uint64(page)*4096, Pages: 1}
			all.Areas = append(all.Areas, one)
			if page%8 == 0 {
				must(t, store.Put(memory.Run{Task: task, Address: one.Start, Pages: 1},
					pageContent(id, page)))
			} else {
				remote.Areas = append(remote.Areas, one)
			}
		}
	}
	must(t, store.Remote([]memory.TaskMap{remote}))
	must(t, store.Keep([]memory.TaskMap{all}))
	image, err := store.Seal()
	must(t, err)
	return image
}

// remotePage returns the source's content at an address.
func remotePage(address uint64) []byte {
	return pageContent((address-arenaBase)/arenaSpacing, int(address%arenaSpacing/4096))
}

// source sends the missing pages, in random order, and requested ones at once.
type source struct {
	t            testing.TB
	remote       memory.RemotePages
	mu           sync.Mutex
	remoteFaults int
	sent         map[uint64]bool
	order        []memory.Run // not pushed yet
}

func newSource(t testing.TB, path string) *source {
	t.Helper()
	remote, err := DialRemote(t.Context(), path)
	must(t, err)
	s := &source{t: t, remote: remote, sent: map[uint64]bool{}}
	t.Cleanup(func() { remote.Close() })
	for _, m := range remote.Missing() {
		for _, a := range m.Areas {
			for a.Pages > 0 {
				n := min(1+rand.Uint64N(16), a.Pages)
				s.order = append(s.order, memory.Run{Task: m.Task, Address: a.Start, Pages: uint32(n)})
				a.Start, a.Pages = a.Start+n*4096, a.Pages-n
			}
		}
	}
	rand.Shuffle(len(s.order), func(i, j int) { s.order[i], s.order[j] = s.order[j], s.order[i] })
	return s
}

// put sends the pages of a run that were not sent yet. The caller holds the lock.
func (s *source) put(run memory.Run) error {
	for i := range uint64(run.Pages) {
		address := run.Address + i*4096
		if s.sent[address] {
			continue
		}
		s.sent[address] = true
		if err := s.remote.Put(memory.Run{Task: run.Task, Address: address, Pages: 1},
			remotePage(address)); err != nil {
			return err
		}
	}
	return nil
}

// answer sends requested pages, until all have come or the context ends.
func (s *source) answer(ctx context.Context) error {
	for {
		want, err := s.remote.Next(ctx)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.remoteFaults++
		if s.sent[want.Address] {
			err = nil
		} else {
			err = s.put(memory.Run{Task: want.Task, Address: want.Address, Pages: 1})
		}
		s.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// push sends so many of the missing runs.
func (s *source) push(runs int) error {
	for range runs {
		s.mu.Lock()
		if len(s.order) == 0 {
			s.mu.Unlock()
			return nil
		}
		run := s.order[0]
		s.order = s.order[1:]
		err := s.put(run)
		s.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

func newRemoteWorld(t testing.TB) *world {
	w := newWorld(t)
	w.config.Remote = w.dir + "/" + strings.Repeat("deep", 30)
	must(t, os.Mkdir(w.config.Remote, 0o700))
	w.config.Remote += "/late.sock"
	return w
}

// TestRemote sends pages in random order over two connections, one after the other, while a process changes
// its memory in every way: at first only requested pages.
func TestRemote(t *testing.T) {
	w := newRemoteWorld(t)
	w.start()
	must(t, w.pager.Serve(t.Context(), remoteImage(t, 7, 64)))
	v := w.victim("-mb", "64", "-pid", "7", "-chaos", "-threads", "4", "-pause", "3ms")
	await.True(t, "the workload", func() bool { return v.count("ready") > 0 })
	v.say("")
	must(t, w.pager.Resumed())
	first := newSource(t, w.config.Remote)
	must(t, first.push(100))
	answered := make(chan error, 1)
	go func() { answered <- first.answer(t.Context()) }()
	await.True(t, "faults",
		func() bool { first.mu.Lock(); defer first.mu.Unlock(); return first.remoteFaults > 200 })

	second := newSource(t, w.config.Remote) // ends the first one
	if err := <-answered; err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the first connection ends with %v", err)
	}
	go func() { answered <- second.answer(t.Context()) }()
	if r := w.report(); r.State != memory.Filling || r.RemoteLeft == 0 {
		t.Errorf("before all is brought: %+v", r)
	}
	must(t, second.push(1<<30))
	if err := <-answered; !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	r := w.over()
	if r.State != memory.Filled || r.LeftPages != 0 || r.RemoteLeft != 0 || r.LostPages != 0 ||
		r.FetchedPages == 0 || r.WaitedSeconds < r.WaitingSeconds {
		t.Errorf("at the end: %+v", r)
	}
	t.Logf("%+v", r)
	w.nothingLeft()
	rounds := v.count("round")
	await.True(t, "checks after it", func() bool { return v.count("round") > rounds+2 || v.count("BAD") > 0 })
	v.good()
	if _, err := DialRemote(t.Context(), w.config.Remote); !errors.Is(err, ErrNoPager) {
		t.Errorf("DialRemote after the end: %v", err)
	}
}

// TestRemoteEarly connects before there is an image, and sends all pages before there is a process.
func TestRemoteEarly(t *testing.T) {
	w := newRemoteWorld(t)
	if _, err := DialRemote(t.Context(), w.config.Remote); !errors.Is(err, ErrNoPager) {
		t.Errorf("DialRemote before there is a pager: %v", err)
	}
	w.start()
	dialled := make(chan memory.RemotePages, 1)
	go func() {
		remote, err := DialRemote(t.Context(), w.config.Remote)
		if err != nil {
			t.Error(err)
		}
		dialled <- remote
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := DialRemote(ctx, w.config.Remote); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("DialRemote without an image: %v", err)
	}
	must(t, w.pager.Serve(t.Context(), remoteImage(t, 1, 16)))
	remote := <-dialled
	defer remote.Close()
	s := newSource(t, w.config.Remote)
	must(t, s.push(1<<30))
	if err := s.answer(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("when all has come: %v", err)
	}
	v := w.victim("-mb", "16")
	await.True(t, "the workload", func() bool { return v.count("ready") > 0 })
	v.say("")
	if r := w.over(); r.State != memory.Filled || r.RemotePages == 0 || r.RemoteLeft != 0 ||
		r.FetchedPages != 0 {
		t.Errorf("at the end: %+v", r)
	}
	rounds := v.count("round")
	await.True(t, "checks after it", func() bool { return v.count("round") > rounds+1 || v.count("BAD") > 0 })
	v.good()
	w.nothingLeft()
}
