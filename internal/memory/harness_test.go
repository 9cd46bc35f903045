package memory

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/await"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

var workloadDir string // made when the first test starts the workload

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	defer func() {
		if workloadDir != "" {
			_ = os.RemoveAll(workloadDir)
		}
	}()
	return m.Run()
}

// envWorkloads names a directory in which the workloads are built already, for machines without compilers.
const envWorkloads = "GODWIT_TEST_WORKLOADS"

// buildWorkload returns the path of the workload; the 32-bit one has the suffix 32, the one that executes
// commands the suffix script.
var buildWorkload = sync.OnceValues(func() (string, error) {
	if built := os.Getenv(envWorkloads); built != "" {
		return filepath.Join(built, "workload"), nil
	}
	dir, err := os.MkdirTemp("", "godwit-memory-")
	if err != nil {
		return "", err
	}
	workloadDir = dir
	path := filepath.Join(dir, "workload")
	return path, errors.Join(
		os.Chmod(dir, 0o755), // the workload may run as another user
		command("gcc", "-O1", "-pthread", "-o", path, "testdata/workload/workload.c"),
		command("gcc", "-O1", "-o", path+"shared", "testdata/sharer/sharer.c"),
		command("gcc", "-O1", "-o", path+"script", "testdata/script/script.c"),
		command("env", "CGO_ENABLED=0", "GOARCH=386", "go", "build", "-o", path+"32",
			"./testdata/workload32"))
})

func command(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// program is the workload in a cgroup of its own.
type program struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.Writer
	out   *bufio.Reader
	group *cgroup.Cgroup
	ended bool
}

var programs atomic.Int64

func start(t testing.TB, kind string, mebibytes, threads int, more ...string) *program {
	t.Helper()
	path, err := buildWorkload()
	must(t, err)
	if kind == "32" || kind == "script" {
		path += kind
	}
	name := fmt.Sprintf("/godwit-memory-%d-%d", os.Getpid(), programs.Add(1))
	dir := filepath.Join(unifiedMount(t), name)
	must(t, os.Mkdir(dir, 0o755))
	t.Cleanup(func() {
		if !await.Within(5*time.Second, func() bool { return unix.Rmdir(dir) == nil }) {
			t.Errorf("cgroup %s cannot be removed", dir)
		}
	})
	p := &program{t: t}
	p.group, err = cgroup.Open(name)
	must(t, err)
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	arguments := append([]string{kind, fmt.Sprint(mebibytes), fmt.Sprint(threads)}, more...)
	if kind == "shared" {
		path, arguments = path+"shared", arguments[1:]
	}
	p.cmd = exec.Command(path, arguments...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}
	p.cmd.Stderr = os.Stderr
	p.in, err = p.cmd.StdinPipe()
	must(t, err)
	out, err := p.cmd.StdoutPipe()
	must(t, err)
	p.out = bufio.NewReader(out)
	must(t, p.cmd.Start())
	t.Cleanup(p.end)
	if line, err := p.out.ReadString('\n'); line != "ready\n" {
		t.Fatalf("the workload says %q, %v", line, err)
	}
	return p
}

func (p *program) end() {
	if p.ended {
		return
	}
	p.ended = true
	must(p.t, p.group.Kill(context.Background()))
	_ = p.cmd.Wait()
}

func unifiedMount(t testing.TB) string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for line := range strings.Lines(string(data)) {
		if m, ok := kernel.ParseMount(strings.TrimSpace(line)); ok && m.Type == "cgroup2" {
			return m.Point
		}
	}
	t.Fatal("cgroup version 2 is not mounted")
	return ""
}

// check asks the workload for its state, fails if its memory was wrong, and returns how much work it has
// done.
func (p *program) check() int {
	p.t.Helper()
	_, err := fmt.Fprintln(p.in)
	must(p.t, err)
	var bad, done int
	line, err := p.out.ReadString('\n')
	must(p.t, err)
	_, err = fmt.Sscanf(line, "bad %d done %d\n", &bad, &done)
	must(p.t, err)
	if bad > 0 {
		p.t.Fatalf("%d times the workload found what it had not left there", bad)
	}
	return done
}

// progress waits until the workload has done more.
func (p *program) progress() {
	p.t.Helper()
	was := p.check()
	await.True(p.t, "a workload that goes on", func() bool { return p.check() > was })
}

func (p *program) pid() int { return p.cmd.Process.Pid }

func (p *program) freeze() {
	p.t.Helper()
	_, err := p.group.Freeze(context.Background())
	must(p.t, err)
}

func (p *program) thaw() { must(p.t, p.group.Thaw()) }

// sinkFunc is a Sink.
type sinkFunc func(Run, []byte) error

func (f sinkFunc) Put(run Run, data []byte) error { return f(run, data) }

func ignoreRuns() Sink { return sinkFunc(ignoreRun) }

// copied is a target: the received content of each page.
type copied struct {
	t     testing.TB
	pages map[Task]map[uint64][]byte
}

func newCopied(t testing.TB) *copied { return &copied{t, map[Task]map[uint64][]byte{}} }

// receive decodes data that is written to the returned writer; call the function at the end.
func (c *copied) receive() (io.Writer, func()) {
	r, w := io.Pipe()
	done := make(chan error)
	go func() {
		limits := Limits{Pages: 1 << 40, Runs: 1 << 40}
		err := Decode(r, &limits, c.place)
		_ = r.CloseWithError(err)
		done <- err
	}()
	b := bufio.NewWriterSize(w, 1<<20)
	return b, func() {
		must(c.t, b.Flush())
		_ = w.Close()
		must(c.t, <-done)
	}
}

func (c *copied) place(run Run, data []byte) error {
	pages := c.pages[run.Task]
	if pages == nil {
		pages = map[uint64][]byte{}
		c.pages[run.Task] = pages
	}
	size := PageSize()
	for i := range int(run.Pages) {
		address := run.Address + uint64(i*size)
		if run.Zero {
			pages[address] = nil
			continue
		}
		page := pages[address]
		if page == nil {
			page = make([]byte, size)
			pages[address] = page
		}
		copy(page, data[i*size:])
	}
	return nil
}

// round makes a round and receives it.
func (c *copied) round(s *Source, frozen bool) RoundStats {
	c.t.Helper()
	w, finish := c.receive()
	do := s.Round
	if frozen {
		do = s.Final
	}
	stats, err := do(context.Background(), NewEncoder(w))
	must(c.t, err)
	finish()
	return stats
}

// verify compares the copy with the frozen processes: each page of the map, and each page in the page
// tables, which are read independently. It returns the number of compared pages.
func (c *copied) verify(p *program, maps []TaskMap) int {
	c.t.Helper()
	listed := map[Task]map[uint64]bool{}
	for _, m := range maps {
		listed[m.Task] = map[uint64]bool{}
		for _, a := range m.Areas {
			for i := range a.Pages {
				listed[m.Task][a.Start+i*uint64(PageSize())] = true
			}
		}
	}
	pids, err := p.group.Procs()
	must(c.t, err)
	compared := 0
	for i, pid := range pids {
		if sharesWithAny(pid, pids[:i]) || sharesWithAny(pid, pids[i+1:]) &&
			len(c.pages[taskOf(c.t, pid)]) == 0 {
			continue // a child of vfork before its execve
		}
		compared += c.verifyProcess(pid, listed)
	}
	return compared
}

func taskOf(t testing.TB, pid int) Task {
	t.Helper()
	process, err := kernel.ReadProcess(pid)
	must(t, err)
	return Task(process.NamespaceID)
}

func sharesWithAny(pid int, others []int) bool {
	return slices.ContainsFunc(others, func(other int) bool {
		same, err := kernel.ShareMemory(pid, other)
		return err == nil && same
	})
}

func (c *copied) verifyProcess(pid int, listed map[Task]map[uint64]bool) int {
	id := taskOf(c.t, pid)
	truth := pagesOf(c.t, pid)
	wrong, missing, unlisted := 0, 0, 0
	for address, content := range truth {
		if !listed[id][address] {
			unlisted++
		}
		got, sent := c.pages[id][address]
		if got == nil {
			got = make([]byte, PageSize())
		}
		if !sent {
			missing++
		} else if !bytes.Equal(got, content) {
			wrong++
			c.t.Logf("process %d: the page at %#x is not what was sent of it", pid, address)
		}
	}
	for address := range listed[id] {
		if truth[address] == nil {
			unlisted++
		}
	}
	if wrong+missing+unlisted > 0 {
		c.t.Errorf("process %d, %d pages: %d have another content, %d were not sent, the map is wrong "+
			"about %d", pid, len(truth), wrong, missing, unlisted)
	}
	return len(truth)
}

// pagesOf reads all anonymous pages of a process's private anonymous mappings by the old interfaces.
func pagesOf(t testing.TB, pid int) map[uint64][]byte {
	t.Helper()
	pages := map[uint64][]byte{}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	must(t, err)
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	must(t, err)
	defer mem.Close()
	pagemap, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	must(t, err)
	defer pagemap.Close()
	var begin, end uint64
	var anonymous bool
	for line := range strings.Lines(string(maps)) {
		fields := strings.Fields(line)
		if strings.Contains(fields[0], "-") {
			_, err := fmt.Sscanf(fields[0], "%x-%x", &begin, &end)
			must(t, err)
			anonymous = fields[1][3] == 'p' && fields[4] == "0" && !strings.Contains(line, "[v") &&
				!strings.Contains(line, "[sigpage]")
		}
		if fields[0] != "VmFlags:" || !anonymous || strings.Contains(line, " lo ") {
			continue
		}
		for at := begin; at < end; at += uint64(PageSize()) {
			var entry [8]byte
			_, err := pagemap.ReadAt(entry[:], int64(at/uint64(PageSize())*8))
			must(t, err)
			e := binary.NativeEndian.Uint64(entry[:])
			if e>>62 == 0 || e>>61&1 != 0 || isZeroPage(t, e) {
				continue
			}
			content := make([]byte, PageSize())
			if _, err = mem.ReadAt(content, int64(at)); errors.Is(err, unix.EIO) {
				continue // a guard
			}
			must(t, err)
			pages[at] = content
		}
	}
	return pages
}

// isZeroPage asks for the flags of a page frame: KPF_ZERO_PAGE is bit 24.
func isZeroPage(t testing.TB, entry uint64) bool {
	if entry>>63 == 0 {
		return false
	}
	f, err := os.Open("/proc/kpageflags")
	must(t, err)
	defer f.Close()
	var flags [8]byte
	_, err = f.ReadAt(flags[:], int64(entry&(1<<55-1)*8))
	must(t, err)
	return binary.NativeEndian.Uint64(flags[:])>>24&1 != 0
}

// leavesNoTrace checks that a process has neither a userfaultfd nor write-protected memory.
func leavesNoTrace(t testing.TB, pid int) {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	must(t, err)
	for _, e := range entries {
		if target, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name())); strings.Contains(target,
			"userfault") {
			t.Errorf("descriptor %s of process %d is %s", e.Name(), pid, target)
		}
	}
	smaps, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	must(t, err)
	if n := strings.Count(string(smaps), " uw"); n > 0 {
		t.Errorf("%d mappings of process %d are write-protected", n, pid)
	}
	if p, err := kernel.ReadProcess(pid); err != nil || p.Tracer != 0 {
		t.Errorf("process %d: %+v, %v", pid, p, err)
	}
}
