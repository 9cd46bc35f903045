package postcopy

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/await"
	"github.com/godwit/godwit/internal/memory"
)

// TestWhole sends all pages of random maps while some are requested at random.
func TestWhole(t *testing.T) {
	noLeaks(t)
	for seed := range uint64(6) {
		random := rand.New(rand.NewPCG(seed, 1))
		maps := randomMaps(random, 4000)
		box := newContainer(t, maps)
		var last memory.FillReport
		server, err := NewServer(ServerConfig{
			Pages: &frozen{}, Remote: maps, Hot: maps[:1], Report: func(r memory.FillReport) { last = r },
		})
		must(t, err)
		client, err := NewClient(ClientConfig{Pages: box, Every: time.Millisecond})
		must(t, err)
		all := spots(maps)
		var asking sync.WaitGroup
		for range 3 {
			asking.Go(func() { askAtRandom(t, box, all, seed) })
		}
		source, target := both(t.Context(), server, client, link(t))
		must(t, source)
		must(t, target)
		asking.Wait()
		sent, got := server.Stats(), client.Stats()
		t.Logf("source %+v", sent)
		if box.missing() != 0 || sent.LeftPages != 0 || got.LeftPages != 0 || !sent.Complete ||
			last.State != memory.Filled {
			t.Errorf("%d pages are missing; source %+v, target %+v, report %+v", box.missing(), sent, got,
				last)
		}
		if n := sent.UrgentPages + sent.PushedPages; n != int64(len(all)) ||
			got.UrgentPages+got.PushedPages != n {
			t.Errorf("%d pages were sent of %d; target %+v", n, len(all), got)
		}
		if sent.UrgentPages != got.UrgentPages || sent.Faults-sent.UnderWayFaults != sent.UrgentPages ||
			sent.Faults != got.Faults {
			t.Errorf("urgent pages: source %+v, target %+v", sent, got)
		}
	}
}

// askAtRandom waits for pages as the threads of a program do.
func askAtRandom(t testing.TB, box *container, all []spot, seed uint64) {
	random := rand.New(rand.NewPCG(seed, rand.Uint64()))
	for range 100 {
		at := random.IntN(len(all))
		for _, s := range all[at:min(len(all), at+random.IntN(3)+1)] {
			select {
			case <-box.want(s):
			case <-time.After(30 * time.Second):
				t.Errorf("page %+v does not come", s)
				return
			}
		}
	}
}

// TestCut cuts the connections at random moments, sometimes replacing server or client, and checks that
// everything arrives and that nothing that arrived is sent again.
func TestCut(t *testing.T) {
	noLeaks(t)
	for seed := range uint64(4) {
		random := rand.New(rand.NewPCG(seed, 2))
		maps := randomMaps(random, 20000)
		box := newContainer(t, maps)
		pages := &frozen{}
		server, err := NewServer(ServerConfig{Pages: pages, Remote: maps})
		must(t, err)
		client, err := NewClient(ClientConfig{Pages: box, Every: time.Millisecond})
		must(t, err)
		all := spots(maps)
		var asking sync.WaitGroup
		for range 3 {
			asking.Go(func() { askAtRandom(t, box, all, seed) })
		}
		cuts, lost := 0, int64(0)
		for {
			l := link(t)
			before, arrived := pages.pages.Load(), box.missing()
			stop := make(chan struct{})
			if cuts < 20 {
				cuts++
				go cutWhen(box, max(1, box.missing()-random.IntN(2*len(all)/20)), l, stop)
			}
			source, target := both(t.Context(), server, client, l)
			close(stop)
			lost += pages.pages.Load() - before - int64(arrived-box.missing())
			if source == nil && target == nil {
				break
			}
			if errors.Is(source, ErrPeer) || errors.Is(target, ErrPeer) || errors.Is(source, ErrSource) ||
				errors.Is(target, ErrTarget) {
				t.Fatalf("source %v, target %v", source, target)
			}
			if random.IntN(3) == 0 { // the source's agent was restarted
				server, err = NewServer(ServerConfig{Pages: pages})
				must(t, err)
			}
			if random.IntN(3) == 0 { // the target's
				client = again(t, box)
			}
		}
		asking.Wait()
		if box.missing() != 0 {
			t.Errorf("%d pages are missing", box.missing())
		}
		t.Logf("%d pages, %d cuts, %d were sent again", len(all), cuts, lost)
		if sent := pages.pages.Load(); sent != int64(len(all))+lost {
			t.Errorf("%d pages were read, of %d, with %d lost", sent, len(all), lost)
		}
	}
}

// cutWhen cuts a link when at most so many pages are missing.
func cutWhen(box *container, left int, l linked, stop chan struct{}) {
	for box.missing() > left {
		select {
		case <-stop:
			return
		default:
			time.Sleep(20 * time.Microsecond)
		}
	}
	l.cut()
}

// again reconnects to the container's pager, with the currently missing and requested pages.
func again(t testing.TB, box *container) *Client {
	box.mu.Lock()
	var maps []memory.TaskMap
	for _, m := range box.maps {
		now := memory.TaskMap{Task: m.Task}
		for _, s := range spots([]memory.TaskMap{m}) {
			if !box.here[s] {
				now.Areas = append(now.Areas, memory.Area{Start: s.address, Pages: 1})
			}
		}
		maps = append(maps, now)
	}
	box.maps = maps
	for len(box.faults) > 0 {
		<-box.faults
	}
	for s := range box.waits {
		box.faults <- memory.RemoteFault{Task: s.task, Address: s.address}
	}
	box.mu.Unlock()
	client, err := NewClient(ClientConfig{Pages: box})
	must(t, err)
	return client
}

// TestNothingMissing: the source is only told that nothing is missing.
func TestNothingMissing(t *testing.T) {
	noLeaks(t)
	for _, remote := range [][]memory.TaskMap{nil,
		{}, {{Task: 3, Areas: []memory.Area{{Start: 1 << 30, Pages: 100000}}}}} {
		server, err := NewServer(ServerConfig{Pages: &frozen{}, Remote: remote})
		must(t, err)
		client, err := NewClient(ClientConfig{})
		must(t, err)
		source, target := both(t.Context(), server, client, link(t))
		must(t, source)
		must(t, target)
	}
}

// TestThousandsOfFaults requests as many pages at once as need several sections.
func TestThousandsOfFaults(t *testing.T) {
	noLeaks(t)
	maps := flat(1 << 16)
	box := newContainer(t, maps)
	all := spots(maps)
	rand.New(rand.NewPCG(3, 3)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, s := range all[:2*maxFaults-100] {
		box.want(s)
	}
	server, err := NewServer(ServerConfig{Pages: &frozen{}, Remote: maps})
	must(t, err)
	client, err := NewClient(ClientConfig{Pages: box})
	must(t, err)
	source, target := both(t.Context(), server, client, link(t))
	must(t, source)
	must(t, target)
	if s := server.Stats(); s.UrgentPages+s.PushedPages != 1<<16 ||
		s.Faults-s.UnderWayFaults != s.UrgentPages {
		t.Errorf("%+v", s)
	}
}

// TestNobodyNeeds ends when the pager says so, though pages are missing.
func TestNobodyNeeds(t *testing.T) {
	noLeaks(t)
	maps := []memory.TaskMap{{Task: 3, Areas: []memory.Area{{Start: 1 << 30, Pages: 1 << 17}}}}
	box := newContainer(t, maps)
	server, err := NewServer(ServerConfig{Pages: &frozen{}, Remote: maps})
	must(t, err)
	client, err := NewClient(ClientConfig{Pages: box})
	must(t, err)
	go func() {
		await.Within(await.Limit, func() bool { return box.missing() <= 1<<17-1000 })
		close(box.full)
	}()
	source, target := both(t.Context(), server, client, link(t))
	must(t, source)
	must(t, target)
	if left := box.missing(); left == 0 {
		t.Error("all pages came")
	}
}

// TestCancel ends both sides.
func TestCancel(t *testing.T) {
	noLeaks(t)
	maps := []memory.TaskMap{{Task: 3, Areas: []memory.Area{{Start: 1 << 30, Pages: 1 << 12}}}}
	server, err := NewServer(ServerConfig{Pages: &frozen{}})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	l := link(t)
	go func() { // it never sends anything
		await.Within(await.Limit, func() bool { return server.Stats().Connections > 0 })
		cancel()
	}()
	if err := server.Serve(ctx, l.sourceUrgent, l.sourcePush); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	client, err := NewClient(ClientConfig{Pages: newContainer(t, maps)})
	must(t, err)
	l = link(t)
	ctx, cancel = context.WithCancel(t.Context())
	go func() {
		await.Within(await.Limit, func() bool { return client.Stats().Connections > 0 })
		cancel()
	}()
	if err := client.Run(ctx, l.targetUrgent, l.targetPush); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
