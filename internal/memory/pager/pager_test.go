package pager

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/await"
	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory"
)

// fillHere serves a victim in this process: faults only, until run is called.
func fillHere(t testing.TB, megabytes int, arguments ...string) (*filler, *victim) {
	t.Helper()
	dir := shortDir(t)
	_, cgroup := group(t)
	p := &process{}
	must(t, p.open(arenaImage(t, 1, megabytes)))
	socket, err := criu.ListenLazy(dir)
	must(t, err)
	v := startVictim(t, cgroup,
		append([]string{"-socket", dir + "/lazy-pages.socket", "-mb", strconv.Itoa(megabytes)},
			arguments...)...)
	restore, err := socket.Accept(t.Context())
	must(t, err)
	task, _, err := restore.Next()
	must(t, err)
	if task.PID != 1 || task.Faults < 0 {
		t.Fatalf("the first process: %+v", task)
	}
	must(t, p.filler.add(1, task.Faults))
	if task, _, err = restore.Next(); err != nil || task.PID != 100 || task.Faults != -1 {
		t.Fatalf("the zombie: %+v, %v", task, err)
	}
	t.Cleanup(func() {
		must(t, unix.Munmap(p.filler.data))
		p.filler.pages.Close()
	})
	t.Cleanup(p.filler.close)
	v.say("")
	if _, more, err := restore.Next(); err != nil || more {
		t.Fatalf("at the end: %v, %v", more, err)
	}
	must(t, restore.Close())
	return p.filler, v
}

// TestChaos fills the memory of a process that does everything to it: at first only touched pages, then
// all.
func TestChaos(t *testing.T) {
	for range 3 {
		f, v := fillHere(t, 128, "-chaos", "-threads", "2", "-pause", "3ms")
		c := &f.counts
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("faults %d zero %d forks %d remaps %d removes %d unmaps %d retries %d",
					c.faults.Load(), c.zeros.Load(),
					c.forks.Load(), c.remaps.Load(), c.removes.Load(), c.unmaps.Load(), c.retries.Load())
				t.Log(v.lines)
			}
		})
		await.True(t, "some chaos", func() bool {
			return c.forks.Load() > 25 && c.remaps.Load() > 20 && c.removes.Load() > 20 &&
				c.unmaps.Load() > 20 || len(f.failed) > 0
		})
		missing := f.left()
		must(t, f.run())
		t.Logf("%d pages missing, faults %d zero %d retries %d gone %d p50 %v p99 %v max %v", missing,
			f.counts.faults.Load(),
			f.counts.zeros.Load(), f.counts.retries.Load(), f.counts.gone.Load(), f.latencies.quantile(0.5),
			f.latencies.quantile(0.99), time.Duration(f.latencies.maximum.Load()))
		if left := f.left(); left != 0 {
			t.Errorf("%d pages are left", left)
		}
		rounds := v.count("round")
		await.True(t, "checks after it",
			func() bool { return v.count("round") > rounds+2 || v.count("BAD") > 0 })
		v.good()
		if missing == 0 {
			t.Error("all was filled before the background began")
		}
	}
}

// TestAround: the neighbours of a touched page come with it, and nothing else before the background work
// may begin.
func TestAround(t *testing.T) {
	f, _ := fillHere(t, 64, "-threads", "1", "-pause", "20ms")
	s := f.living()[0]
	whole := func() bool {
		s.mu.RLock()
		defer s.mu.RUnlock()
		for page := 0; page < len(s.pending)*wordBits; page += aroundPages {
			missing := 0
			for at := page; at < page+aroundPages; at++ {
				if s.missing(at) {
					missing++
				}
			}
			if missing != 0 && missing != aroundPages*15/16 {
				return false
			}
		}
		return true
	}
	await.True(t, "neighbours of touched pages", func() bool { return f.counts.faults.Load() > 0 && whole() })
	missing := f.left()
	if step, err := f.step(); step != nothing || err != nil || missing == 0 {
		t.Errorf("a step before the processes have what they need: %v, %v, with %d pages missing", step,
			err, missing)
	}
	f.rested.Store(true)
	if step, err := f.step(); step != worked || err != nil {
		t.Errorf("a step of the background: %v, %v", step, err)
	}
	must(t, f.run())
}

// TestReady fills pages that were sent more than once, with their neighbours, before the processes run:
// only those, and for a limited time.
func TestReady(t *testing.T) {
	f, _ := fillHere(t, 64, "-threads", "1", "-pause", "20ms")
	s := f.living()[0]
	missing := func(page int) (pages int) {
		for at := page; at < page+aroundPages; at++ {
			if s.missing(at) {
				pages++
			}
		}
		return pages
	}
	running := make(chan struct{})
	again := s.family.again
	if len(again) != 64<<20/4096/256 {
		t.Fatalf("parts in which a page was sent more than once: %d", len(again))
	}
	ready := func() {
		done := make(chan struct{})
		go func() { f.ready(running); close(done) }() // its thread gives way, and ends
		<-done
	}
	ready()
	for n, page := range again {
		if left := missing(page); n < readyPages/aroundPages && left > 0 {
			t.Errorf("part %d: %d pages are missing", page, left)
		}
	}
	touched := f.counts.faults.Load() // the thread runs in this test
	if left := f.left(); left < 64<<20/4096*15/16-readyPages-touched*aroundPages {
		t.Errorf("%d pages are left, %d were touched", left, touched)
	}
	close(running)
	rest := 0
	for missing(rest) == 0 {
		rest += aroundPages
	}
	touched, s.family.again = f.counts.faults.Load(), []int{rest}
	ready()
	if missing(rest) == 0 && f.counts.faults.Load() == touched {
		t.Error("what was not touched is filled though the processes run")
	}
	must(t, f.run())
}

// TestMemoryOnce: the image shrinks as it is used.
func TestMemoryOnce(t *testing.T) {
	f, v := fillHere(t, 64, "-threads", "1")
	must(t, f.run())
	// Two workers that copied the same last pages may have allocated some again.
	if size := blocks(t, f.pages); size > 2*largeChunk {
		t.Errorf("the image still takes %d bytes", size)
	}
	rounds := v.count("round")
	await.True(t, "checks after it", func() bool { return v.count("round") > rounds+1 || v.count("BAD") > 0 })
	v.good()
}

func TestPager(t *testing.T) {
	w := newWorld(t)
	w.start()
	if r := w.report(); r.State != memory.FillNone {
		t.Errorf("before it begins: %+v", r)
	}
	must(t, w.pager.Serve(t.Context(), arenaImage(t, 7, 32)))
	if r := w.report(); r.State != memory.Filling {
		t.Errorf("when it waits: %+v", r)
	}
	v := w.victim("-mb", "32", "-pid", "7", "-chaos")
	await.True(t, "the workload", func() bool { return v.count("ready") > 0 })
	must(t, w.pager.Restored())
	v.say("")
	must(t, w.pager.Resumed())
	if r := w.over(); r.State != memory.Filled || r.LeftPages != 0 || r.Pages != 32<<20/4096*15/16 {
		t.Errorf("at the end: %+v", r)
	}
	w.nothingLeft()
	rounds := v.count("round")
	await.True(t, "checks after it", func() bool { return v.count("round") > rounds+2 || v.count("BAD") > 0 })
	v.good()
}

// TestPagerKilled: the workload ends and never sees a zero.
func TestPagerKilled(t *testing.T) {
	for _, who := range []string{"by its number", "by an error"} {
		t.Run(who, func(t *testing.T) {
			w := newWorld(t)
			w.start()
			must(t, w.pager.Serve(t.Context(), arenaImage(t, 1, 64)))
			v := w.victim("-mb", "64", "-chaos", "-pause", "1ms")
			await.True(t, "some faults",
				func() bool { return v.count("ready") > 0 && v.count("round")+v.count("deeds") == 0 })
			if who == "by an error" {
				v.say("twice")
			} else {
				must(t, unix.Kill(w.report().PID, unix.SIGKILL))
			}
			v.died()
			v.good()
			if v.count("round") > 0 {
				t.Error("all was filled: the test is too slow")
			}
			if r := w.over(); r.State != memory.FillLost || r.Error == "" {
				t.Errorf("report: %+v", r)
			}
			w.nothingLeft()
		})
	}
}

// TestGuardKilled: a pager gets another guard.
func TestGuardKilled(t *testing.T) {
	w := newWorld(t)
	w.start()
	must(t, w.pager.Serve(t.Context(), arenaImage(t, 1, 64)))
	v := w.victim("-mb", "64", "-pause", "10ms")
	await.True(t, "the workload", func() bool { return v.count("ready") > 0 })
	pager := w.report().PID
	guardOf := func() int {
		for _, pid := range w.processes() {
			if p, err := kernel.ReadProcess(pid); err == nil && p.Parent == pager {
				return pid
			}
		}
		return 0
	}
	first := guardOf()
	must(t, unix.Kill(first, unix.SIGKILL))
	await.True(t, "another guard", func() bool { second := guardOf(); return second != 0 && second != first })
	must(t, unix.Kill(pager, unix.SIGKILL))
	v.died()
	v.good()
	w.nothingLeft()
}

// agentCommand makes the test program an agent: see agentMain.
const agentCommand = "test-agent"

// agentMain starts a pager, passes an image on, reports that, and waits to be killed.
func agentMain(args []string) int {
	config := Config{Executable: args[0], WorkDir: args[1], Report: args[1] + "/memory.json",
		Log: args[1] + "/log", Cgroup: args[2]}
	p, err := Start(context.Background(), config)
	if err == nil && args[3] == "serve" {
		t := &testing.T{}
		err = p.Serve(context.Background(), arenaImage(t, 1, 64))
	}
	if err != nil {
		os.Stdout.WriteString(err.Error() + "\n")
		return 1
	}
	os.Stdout.WriteString("ok\n")
	select {}
}

func (w *world) agent(until string) *exec.Cmd {
	w.t.Helper()
	cmd := exec.Command(w.config.Executable, agentCommand, w.config.Executable, w.dir, w.config.Cgroup, until)
	out, err := cmd.StdoutPipe()
	must(w.t, err)
	must(w.t, cmd.Start())
	w.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	word := make([]byte, 200)
	n, err := out.Read(word)
	if err != nil || string(word[:n]) != "ok\n" {
		w.t.Fatalf("the agent says %q, %v", word[:n], err)
	}
	return cmd
}

// TestAgentKilled: the filling continues without the agent.
func TestAgentKilled(t *testing.T) {
	w := newWorld(t)
	agent := w.agent("serve")
	v := w.victim("-mb", "64", "-chaos", "-pause", "1ms")
	await.True(t, "the workload", func() bool { return v.count("ready") > 0 })
	must(t, agent.Process.Kill())
	_ = agent.Wait()
	v.say("")
	if r := w.over(); r.State != memory.Filled {
		t.Errorf("at the end: %+v", r)
	}
	rounds := v.count("round")
	await.True(t, "checks after it", func() bool { return v.count("round") > rounds+2 || v.count("BAD") > 0 })
	v.good()
	w.nothingLeft()
}

// TestNobodyComes ends the agent, or only its interest, before CRIU has connected: the pager ends and kills
// nothing.
func TestNobodyComes(t *testing.T) {
	for _, until := range []string{"start", "serve"} {
		t.Run(until, func(t *testing.T) {
			w := newWorld(t)
			agent := w.agent(until)
			bystander := startVictim(t, w.cgroup, "-mb", "1")
			must(t, agent.Process.Kill())
			w.nothingLeft()
			if r := w.report(); r.State == memory.Filling {
				t.Errorf("report: %+v", r)
			}
			await.True(t, "the bystander", func() bool { return bystander.count("round") > 0 })
		})
	}
}

// TestRestoreFails ends the connection before the end of the list.
func TestRestoreFails(t *testing.T) {
	w := newWorld(t)
	w.start()
	must(t, w.pager.Serve(t.Context(), arenaImage(t, 1, 8)))
	bystander := startVictim(t, w.cgroup, "-mb", "1")
	v := w.victim("-mb", "8")
	await.True(t, "the workload", func() bool { return v.count("ready") > 0 })
	v.stdin.Close()
	v.died()
	w.nothingLeft()
	if r := w.report(); r.State != memory.FillNone {
		t.Errorf("report: %+v", r)
	}
	await.True(t, "the bystander", func() bool { return bystander.count("round") > 0 })
}

// TestWorkloadEnds kills the workload while its memory is filled.
func TestWorkloadEnds(t *testing.T) {
	w := newWorld(t)
	w.start()
	must(t, w.pager.Serve(t.Context(), arenaImage(t, 1, 64)))
	v := w.victim("-mb", "64", "-pause", "10ms")
	await.True(t, "the workload", func() bool { return v.count("ready") > 0 })
	must(t, unix.Kill(w.report().PID, unix.SIGSTOP))
	v.say("")
	await.True(t, "the end of the list", func() bool { return v.count("resumed") > 0 })
	must(t, v.cmd.Process.Kill())
	v.died()
	_ = v.cmd.Wait()
	must(t, unix.Kill(w.report().PID, unix.SIGCONT))
	if r := w.over(); r.State != memory.FillEnded {
		t.Errorf("report: %+v", r)
	}
	w.nothingLeft()
}

// TestStartFails passes paths that do not exist.
func TestStartFails(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"work directory": func(c *Config) { c.WorkDir += "/missing" },
		"cgroup":         func(c *Config) { c.Cgroup += "-missing" },
		"log":            func(c *Config) { c.Log += "/missing/log" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			change(&w.config)
			_, err := Start(t.Context(), w.config)
			if err == nil || !strings.Contains(err.Error(), "missing") {
				t.Errorf("Start: %v", err)
			}
			w.nothingLeft()
		})
	}
}

// BenchmarkChunk fills the memory of an idle process, in chunks of several sizes.
func BenchmarkChunk(b *testing.B) {
	const megabytes = 512
	for _, pages := range []int{1, 4, 16, 64, 256} {
		b.Run(strconv.Itoa(pages*4)+"KiB", func(b *testing.B) {
			b.SetBytes(megabytes << 20 * 15 / 16)
			var cpu time.Duration
			for b.Loop() {
				b.StopTimer()
				f, v := fillHere(b, megabytes, "-pause", "1h", "-threads", "0")
				must(b, v.cmd.Process.Signal(unix.SIGSTOP))
				f.chunks = [2]int{pages, pages}
				before := cpuTime(b)
				b.StartTimer()
				must(b, f.run())
				cpu += cpuTime(b) - before
				must(b, v.cmd.Process.Kill())
			}
			b.ReportMetric(cpu.Seconds()*1e3/float64(b.N), "cpu-ms")
		})
	}
}

func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
