package pager

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/await"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
	"github.com/godwit/godwit/internal/memory"
)

var chaosProgram string

// TestMain lets the test program act as the pager, and for one test as the agent that starts a pager.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == Command:
		os.Exit(Main(os.Args[2:]))
	case len(os.Args) > 1 && os.Args[1] == agentCommand:
		os.Exit(agentMain(os.Args[2:]))
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "godwit-pager-")
	if err == nil {
		defer os.RemoveAll(dir)
		chaosProgram = filepath.Join(dir, "chaos")
		build := exec.Command("go", "build", "-o", chaosProgram, "./testdata/chaos")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		var out []byte
		if out, err = build.CombinedOutput(); err != nil {
			err = fmt.Errorf("%w\n%s", err, out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build the workload:", err)
		return 1
	}
	return m.Run()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Contents of the workload's arenas: see testdata/chaos.
const (
	arenas       = 4
	arenaBase    = 0x7e0000000000
	arenaSpacing = 1 << 36
)

func pageContent(id uint64, page int) []byte {
	data := make([]byte, 4096)
	for _, place := range []uint64{0, 8, 16, 1024, 2040, 4088} {
		x := id<<56 ^ uint64(page)<<24 ^ 1 ^ place<<44
		x *= 0x9E3779B97F4A7C15
		binary.NativeEndian.PutUint64(data[place:], x^x>>29|1)
	}
	return data
}

// arenaImage is the image of a workload with this much memory.
func arenaImage(t testing.TB, task memory.Task, megabytes int) *memory.Image {
	t.Helper()
	store, err := memory.NewStore(int64(megabytes)<<20 + 1<<20)
	must(t, err)
	m := memory.TaskMap{Task: task}
	for id := uint64(1); id <= arenas; id++ {
		for page := range megabytes << 20 / 4096 / arenas {
			if page%16 == 5 {
				continue
			}
			run := memory.Run{Task: task, Address: arenaBase + id*arenaSpacing + uint64(page)*4096, Pages: 1}
			if page%256 == 0 { // it was written while it was sent
				must(t, store.Put(run, pageContent(id, page+1)))
			}
			must(t, store.Put(run, pageContent(id, page)))
			m.Areas = append(m.Areas, memory.Area{Start: run.Address, Pages: 1})
		}
	}
	must(t, store.Keep([]memory.TaskMap{m}))
	image, err := store.Seal()
	must(t, err)
	return image
}

// group makes a cgroup for a test.
func group(t testing.TB) (name, dir string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for line := range strings.Lines(string(mounts)) {
		if m, ok := kernel.ParseMount(line); ok && m.Type == "cgroup2" {
			name = fmt.Sprintf("/godwit-pager-test-%d-%d", os.Getpid(), time.Now().UnixNano())
			dir = filepath.Join(m.Point, name)
			must(t, os.Mkdir(dir, 0o755))
			t.Cleanup(func() {
				g, err := cgroup.Open(name)
				must(t, err)
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				defer cancel()
				must(t, g.Kill(ctx))
				must(t, g.Remove())
			})
			return name, dir
		}
	}
	t.Fatal("these tests need cgroup version 2")
	return "", ""
}

// victim is a workload whose memory is filled.
type victim struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan struct{}

	mu    sync.Mutex
	lines []string
}

// startVictim starts a workload in a cgroup.
func startVictim(t testing.TB, cgroup string, arguments ...string) *victim {
	t.Helper()
	dir, err := os.Open(cgroup)
	must(t, err)
	defer dir.Close()
	v := &victim{t: t, cmd: exec.Command(chaosProgram, arguments...), ended: make(chan struct{})}
	v.cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	v.cmd.Stderr = os.Stderr
	v.stdin, err = v.cmd.StdinPipe()
	must(t, err)
	out, err := v.cmd.StdoutPipe()
	must(t, err)
	must(t, v.cmd.Start())
	go v.read(out)
	t.Cleanup(func() {
		_ = v.cmd.Process.Kill()
		v.stdin.Close()
		<-v.ended
		_ = v.cmd.Wait()
	})
	return v
}

func (v *victim) read(out io.Reader) {
	defer close(v.ended)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		v.mu.Lock()
		v.lines = append(v.lines, lines.Text())
		v.mu.Unlock()
	}
}

func (v *victim) say(line string) {
	v.t.Helper()
	_, err := fmt.Fprintln(v.stdin, line)
	must(v.t, err)
}

// count returns the number of lines with this prefix.
func (v *victim) count(prefix string) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := 0
	for _, line := range v.lines {
		if strings.HasPrefix(line, prefix) {
			n++
		}
	}
	return n
}

// good fails the test if the workload has found a wrong page.
func (v *victim) good() {
	v.t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, line := range v.lines {
		if strings.HasPrefix(line, "BAD") {
			v.t.Error(line)
		}
	}
}

// died waits until the workload has ended.
func (v *victim) died() {
	v.t.Helper()
	select {
	case <-v.ended:
	case <-time.After(10 * time.Second):
		v.t.Fatal("the workload lives")
	}
}

// shortDir is a directory whose path is short enough for the workload's socket.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "g")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// world is a pager and a container's directory.
type world struct {
	t      testing.TB
	dir    string
	cgroup string
	config Config
	pager  *Pager
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, dir: shortDir(t)}
	var name string
	name, w.cgroup = group(t)
	executable, err := os.Executable()
	must(t, err)
	w.config = Config{
		Executable: executable, WorkDir: w.dir, Report: w.dir + "/memory.json", Log: w.dir + "/log",
		Cgroup: name,
	}
	t.Cleanup(w.tellLog)
	return w
}

func (w *world) start() {
	w.t.Helper()
	var err error
	w.pager, err = Start(w.t.Context(), w.config)
	must(w.t, err)
	w.t.Cleanup(func() { w.pager.Close() })
}

// tellLog shows the pager's log if the test fails.
func (w *world) tellLog() {
	if log, err := os.ReadFile(w.dir + "/log"); err == nil && w.t.Failed() && len(log) > 0 {
		w.t.Logf("the pager's log:\n%s", log)
	}
}

func (w *world) victim(arguments ...string) *victim {
	w.t.Helper()
	return startVictim(w.t, w.cgroup,
		append([]string{"-socket", w.dir + "/lazy-pages.socket"}, arguments...)...)
}

func (w *world) report() memory.FillReport {
	w.t.Helper()
	r, err := ReadReport(w.config.Report)
	must(w.t, err)
	return r
}

// over waits until the memory is no longer being filled.
func (w *world) over() memory.FillReport {
	w.t.Helper()
	var r memory.FillReport
	await.True(w.t, "the end of the filling",
		func() bool { r = w.report(); return r.State != memory.Filling })
	return r
}

// processes returns the pagers of this world, and their guards.
func (w *world) processes() []int {
	w.t.Helper()
	entries, err := os.ReadDir("/proc")
	must(w.t, err)
	var found []int
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscan(e.Name(), &pid); err != nil {
			continue
		}
		line, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err != nil || !strings.Contains(string(line), Command+"\x00"+w.config.WorkDir) {
			continue
		}
		if p, err := kernel.ReadProcess(pid); err == nil && p.State != 'Z' {
			found = append(found, pid)
		}
	}
	return found
}

func (w *world) nothingLeft() {
	w.t.Helper()
	await.True(w.t, "the end of the pager and its guard", func() bool { return len(w.processes()) == 0 })
}

// blocks returns the memory of a file in memory.
func blocks(t testing.TB, f *os.File) int64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Fstat(int(f.Fd()), &st))
	return st.Blocks * 512
}
