package memory

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/godwit/godwit/internal/kernel"
)

// TestWhatIsLeftIsThere makes pages remote at a random moment: before the first round, in the middle of
// one, or after. Then sent and remote pages together are the processes' memory, whatever they do meanwhile.
func TestWhatIsLeftIsThere(t *testing.T) {
	for _, c := range []struct {
		kind      string
		mebibytes int
		threads   int
		config    SourceConfig
	}{
		{kind: "write", mebibytes: 16, threads: 8},
		{kind: "write-huge", mebibytes: 16, threads: 2},
		{kind: "churn", mebibytes: 1, threads: 4},
		{kind: "fork", mebibytes: 8, threads: 1},
		{kind: "spawn", mebibytes: 8, threads: 1},
		{kind: "grow", mebibytes: 1, threads: 1},
		{kind: "exec", mebibytes: 4, threads: 2},
		{kind: "guard", mebibytes: 1, threads: 1},
		{kind: "direct", mebibytes: 1, threads: 2},
		{kind: "write-churn-grow-direct", mebibytes: 4, threads: 2, config: SourceConfig{Tracking: Hashing}},
		{kind: "write-churn-grow-exec", mebibytes: 4, threads: 2, config: SourceConfig{Tracking: SoftDirty}},
	} {
		t.Run(c.kind+" "+string(c.config.Tracking), func(t *testing.T) {
			if testing.Short() {
				c.mebibytes = max(1, c.mebibytes/8)
			}
			p := start(t, c.kind, c.mebibytes, c.threads)
			c.config.Processes = p.group.Procs
			for range 2 {
				seed := rand.Uint64()
				leaveOnce(t, p, c.config, seed)
				if t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
		})
	}
}

// leaveOnce makes rounds, in one of which pages begin to stay, and compares all pages in two freezes.
func leaveOnce(t *testing.T, p *program, config SourceConfig, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 0))
	s := NewSource(config)
	if random.IntN(2) == 0 {
		s.ordering = smallOrdering()
	}
	target := newCopied(t)
	rounds, when := 1+random.IntN(4), random.IntN(40)
	for n := range rounds {
		last := n == rounds-1
		if last && when < 10 {
			s.Leave()
		}
		leftRound(t, s, target, last, random.IntN(40))
		if random.IntN(2) == 0 {
			p.progress()
		}
	}
	s.Leave()
	for range 2 {
		p.freeze()
		target.round(s, true)
		target.round(s, true)
		compareLeft(t, p, s, target)
		p.thaw()
		target.round(s, false)
		p.progress()
	}
	must(t, s.Close())
	p.progress()
	leavesNoTrace(t, p.pid())
}

// leftRound makes a round; in the last, pages begin to stay after so many runs. From then on no content is
// sent.
func leftRound(t *testing.T, s *Source, target *copied, last bool, runs int) {
	t.Helper()
	done, fine := make(chan struct{}), 0
	_, err := s.Round(context.Background(), sinkFunc(func(run Run, data []byte) error {
		if !run.Zero && !run.Task.IsObject() && s.Leaving() {
			fine += int(run.Pages)
		}
		if runs--; last && runs == 0 {
			go func() { // any goroutine may call it
				defer close(done)
				s.Leave()
			}()
			<-done
		}
		return target.place(run, data)
	}))
	must(t, err)
	if fine > 0 {
		t.Errorf("%d pages were sent although they stay", fine)
	}
}

// compareLeft reads the remote pages and compares all. It returns the maps of remote pages.
func compareLeft(t *testing.T, p *program, s *Source, target *copied) (remote, hot []TaskMap) {
	t.Helper()
	maps, err := s.Map()
	must(t, err)
	remote, hot, err = s.Remote()
	must(t, err)
	pids, err := p.group.Procs()
	must(t, err)
	frozen, err := OpenFrozen(pids)
	must(t, err)
	defer frozen.Close()
	isRemote := pagesIn(remote)
	for task, pages := range isRemote {
		for address := range pages {
			page := make([]byte, PageSize())
			must(t, frozen.Read(task, address, page))
			must(t, target.place(Run{Task: task, Address: address, Pages: 1}, page))
		}
	}
	listed := pagesIn(maps)
	for what, some := range map[string]map[Task]map[uint64]bool{"remote": isRemote, "hot": pagesIn(hot)} {
		for task, pages := range some {
			for address := range pages {
				if !listed[task][address] || !isRemote[task][address] {
					t.Errorf("the page at %#x of task %d is %s, and not in the map or not remote", address,
						task, what)
				}
			}
		}
	}
	target.verify(p, maps)
	return remote, hot
}

// pagesIn lists the pages of maps.
func pagesIn(maps []TaskMap) map[Task]map[uint64]bool {
	all := map[Task]map[uint64]bool{}
	for _, m := range maps {
		all[m.Task] = map[uint64]bool{}
		for _, a := range m.Areas {
			for i := range a.Pages {
				all[m.Task][a.Start+i*uint64(PageSize())] = true
			}
		}
	}
	return all
}

// scriptBase is where the script's addresses begin.
const scriptBase = 0x600000000000

// remoteOf returns which pages of the script's memory are in maps.
func remoteOf(maps []TaskMap) []uint64 {
	var pages []uint64
	for _, m := range maps {
		for _, a := range m.Areas {
			for i := range a.Pages {
				if at := a.Start + i*uint64(PageSize()); at >= scriptBase &&
					at < scriptBase+4096*uint64(PageSize()) {
					pages = append(pages, (at-scriptBase)/uint64(PageSize()))
				}
			}
		}
	}
	return pages
}

// TestRemoteAndHot lets a program write known pages at known moments, and checks which pages are remote and
// hot.
func TestRemoteAndHot(t *testing.T) {
	for tracking, hot := range map[Tracking]string{
		WriteProtect: "[1 2 11 20]", SoftDirty: "[1 2 11 20]",
		Hashing: "[1 2]", // without an earlier look it knows nothing
	} {
		if tracking == SoftDirty && kernel.ProbeSoftDirty() != nil {
			continue // this kernel lacks it
		}
		t.Run(string(tracking), func(t *testing.T) {
			p := start(t, "script", 0, 0)
			do := func(commands ...string) {
				for _, one := range commands {
					if answer := p.obey(one); answer != "ok" {
						t.Fatalf("%s: %s", one, answer)
					}
				}
			}
			s := NewSource(SourceConfig{Processes: p.group.Procs, Tracking: tracking})
			target := newCopied(t)
			do("map 0 16", "map 20 1", "write 0 10 1")
			target.round(s, false)
			do("write 2 1 2")
			s.Leave()
			target.round(s, false)
			do("write 1 2 3", "write 8 4 4", "read 14 1", "write 20 1 5", "drop 8 3")
			target.round(s, false)
			p.freeze()
			target.round(s, true)
			remote, first := compareLeft(t, p, s, target)
			if pages := fmt.Sprint(remoteOf(remote)); pages != "[1 2 11 20]" {
				t.Errorf("remote are %s", pages)
			}
			if pages := fmt.Sprint(remoteOf(first)); pages != hot {
				t.Errorf("hot are %s, want %s", pages, hot)
			}
			p.thaw()
			must(t, s.Close())
		})
	}
}

// TestPostCopy reads nothing before the freeze or in it, and knows which pages are written meanwhile.
func TestPostCopy(t *testing.T) {
	p := start(t, "script", 0, 0)
	p.obey("map 0 64")
	p.obey("write 0 64 7")
	s := NewSource(SourceConfig{Processes: p.group.Procs})
	s.Leave()
	nothing := sinkFunc(func(run Run, _ []byte) error { return fmt.Errorf("%+v was sent", run) })
	stats, err := s.Round(context.Background(), nothing)
	must(t, err)
	if stats.RemotePages < 64 || stats.Pages > 0 || stats.Read > 0 {
		t.Errorf("the first round: %+v", stats)
	}
	p.obey("write 5 3 9")
	stats, err = s.Round(context.Background(), nothing)
	must(t, err)
	if stats.DirtyingRate() == 0 {
		t.Errorf("the second round: %+v", stats)
	}
	p.freeze()
	_, err = s.Final(context.Background(), nothing)
	must(t, err)
	remote, hot := compareLeft(t, p, s, newCopied(t))
	if n := len(remoteOf(remote)); n != 64 {
		t.Errorf("%d of 64 pages are remote", n)
	}
	if pages := fmt.Sprint(remoteOf(hot)); pages != "[5 6 7]" && s.tasks.config.Tracking != Hashing {
		t.Errorf("hot are %s", pages)
	}
	sendSome(t, p, s, remote)
	p.thaw()
	must(t, s.Close())
}

// sendSome sends some remote pages, and some that are not remote or do not exist.
func sendSome(t *testing.T, p *program, s *Source, remote []TaskMap) {
	t.Helper()
	task, size := remote[0].Task, uint64(PageSize())
	wanted := []RemoteFault{
		{maxTask - 1, scriptBase}, {task, scriptBase + 9*size + 5}, {task, scriptBase + 64*size},
		{task, scriptBase + 3*size},
		{task, scriptBase - size}, {task, scriptBase + 9*size}, {task, scriptBase + 10*size}, {task, 1 << 63},
	}
	target := newCopied(t)
	for _, c := range []struct {
		most int
		want uint64
	}{{0, 0}, {2, 2}, {10, 1}, {10, 0}} {
		stats, err := s.SendRemote(context.Background(), sinkFunc(target.place), wanted, c.most)
		must(t, err)
		if stats.Pages != c.want {
			t.Errorf("at most %d: %+v, want %d pages", c.most, stats, c.want)
		}
	}
	for _, page := range []uint64{3, 9, 10} {
		if _, sent := target.pages[task][scriptBase+page*size]; !sent {
			t.Errorf("page %d was not sent", page)
		}
	}
	left, _, err := s.Remote()
	must(t, err)
	if n := len(remoteOf(left)); n != 61 {
		t.Errorf("%d pages are remote after 3 of 64 were sent", n)
	}
	compareLeft(t, p, s, target)
}

// TestSoon follows pointers from touched pages to remote ones, and to nothing else.
func TestSoon(t *testing.T) {
	p := start(t, "script", 0, 0)
	s := NewSource(SourceConfig{Processes: p.group.Procs})
	size := uint64(PageSize())
	p.obey("map 0 16")
	p.obey("write 0 8 1")
	_, err := s.Round(context.Background(), ignoreRuns())
	must(t, err)
	s.Leave()
	// 3 points to itself; 7 was sent, 12 has no content, 40 does not exist
	for from, to := range []uint64{2, 2, 7, 3, 12, 40} {
		p.obey(fmt.Sprintf("write %d 1 %d", from, scriptBase+to*size+to))
	}
	p.freeze()
	for range 2 {
		_, err = s.Final(context.Background(), ignoreRuns())
		must(t, err)
	}
	task := taskOf(t, p.pid())
	touched := []RemoteFault{
		{task, scriptBase}, {task, scriptBase + 8}, {task, scriptBase + 2*size}, {task, scriptBase + 4*size},
		{task, scriptBase + 50*size}, {task, scriptBase + 13*size}, {task + 1, scriptBase},
	}
	_, err = s.SendRemote(context.Background(), ignoreRuns(), touched, 1)
	must(t, err)
	for most, want := range map[int]string{0: "[]", 2: "[2 4]", 10: "[2 4]"} {
		soon, err := s.Soon(touched, most)
		must(t, err)
		if got := fmt.Sprint(remoteOf(asMaps(soon))); got != want {
			t.Errorf("at most %d soon: %s, want %s", most, got, want)
		}
	}
	soon, err := s.Soon([]RemoteFault{{task, scriptBase + size}, {task, scriptBase + 3*size}}, 10)
	must(t, err)
	if got := fmt.Sprint(remoteOf(asMaps(soon))); got != "[1 3 2]" {
		t.Errorf("soon: %s", got)
	}
	p.thaw()
	must(t, s.Close())
}

// asMaps lists pages one by one.
func asMaps(wanted []RemoteFault) (maps []TaskMap) {
	for _, w := range wanted {
		maps = append(maps, TaskMap{Task: w.Task, Areas: []Area{{w.Address, 1}}})
	}
	return maps
}
