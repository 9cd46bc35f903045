package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	labimage "github.com/godwit/godwit/internal/lab/image"
	"github.com/godwit/godwit/internal/lab/labtest"
	"github.com/godwit/godwit/internal/lab/workload/pages"
)

// pagesImage is the image of a program whose memory changes and that knows its expected content. It is
// godwit-lab, in a separate image: not all tests need one so large.
const pagesImage = "localhost/pages"

var loadPages = sync.OnceValue(func() error {
	archive, err := labimage.OfProgram("pages", inWorld("godwit-lab"), world.directory)
	if err != nil {
		return err
	}
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	cmd, err := world.lab.Command(context.Background(), "a", "godwit", "image", "load", "-")
	if err != nil {
		return err
	}
	cmd.Stdin = file
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("load the image: %w: %s", err, out)
	}
	return nil
})

// writer starts a container on node a that has memory and writes some of it all the time.
func writer(t *testing.T) *container {
	t.Helper()
	if err := loadPages(); err != nil {
		t.Fatal(err)
	}
	config := pages.Config{Size: writerBytes, Hot: 2 << 20, Rate: 1 << 20, Check: 1 << 20}
	return runImage(t, pagesImage, nil, append([]string{labimage.ProgramPath}, config.Args()...)...)
}

const writerBytes = 32 << 20

// right ends the workload, which then checks all its pages.
func (c *container) right() {
	c.t.Helper()
	must(c.t, c.node, "stop", c.name)
	out := strings.TrimSpace(c.logs().stdout)
	var result pages.Result
	if err := json.Unmarshal([]byte(out[strings.LastIndexByte(out, '\n')+1:]), &result); err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
	if result.Bad != 0 || result.Pages != writerBytes/int64(os.Getpagesize()) {
		c.t.Errorf("its memory: %+v", result)
	}
}

// staged is the part of a copy's description that the tests need.
type staged struct {
	Kind        string    `json:"kind"`
	Source      string    `json:"source"`
	Target      string    `json:"target"`
	State       string    `json:"state"`
	Error       string    `json:"error"`
	Rounds      int       `json:"rounds"`
	MemoryBytes int64     `json:"memory_bytes"`
	SentBytes   int64     `json:"sent_bytes"`
	ContainerID string    `json:"container_id"`
	Until       time.Time `json:"until"`
}

func (c *container) stage(flags ...string) staged {
	c.t.Helper()
	var s staged
	args := append([]string{"stage", c.name, c.other(), "--json"}, flags...)
	if err := json.Unmarshal([]byte(must(c.t, c.node, args...)), &s); err != nil {
		c.t.Fatal(err)
	}
	return s
}

// stages lists the container's copies that a node knows; at the source, ended ones come last.
func (c *container) stages(node string) []staged {
	c.t.Helper()
	var all, own []staged
	if err := json.Unmarshal([]byte(must(c.t, node, "stage", "ls", "--json")), &all); err != nil {
		c.t.Fatal(err)
	}
	for _, s := range all {
		if s.ContainerID == c.id {
			own = append(own, s)
		}
	}
	return own
}

// endedStage waits until there is no copy any more, and returns why.
func (c *container) endedStage() string {
	c.t.Helper()
	c.eventually("the end of the copy", func() bool {
		here := c.stages("a")
		return len(c.stages("b")) == 0 && len(here) > 0 && here[len(here)-1].State == "ended"
	})
	here := c.stages("a")
	return here[len(here)-1].Error
}

// tracked reports whether the kernel tracks writes of any process of the container: its mappings then have
// the flag "uw" (Linux, Documentation/filesystems/proc.rst). It asks on the container's node.
func (c *container) tracked() bool {
	c.t.Helper()
	_, init, err := place(c.node)
	if err != nil {
		c.t.Fatal(err)
	}
	found := false
	for pid, arguments := range labtest.Processes(init) {
		if !strings.HasPrefix(arguments, labimage.ProgramPath+" ") {
			continue
		}
		smaps, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "smaps"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			c.t.Fatal(err)
		}
		for line := range strings.Lines(string(smaps)) {
			flags, is := strings.CutPrefix(line, "VmFlags:")
			found = found || is && strings.Contains(flags, " uw")
		}
	}
	return found
}

// precopied is the part of a pre-copy's report that the tests need.
type precopied struct {
	report
	Decisions []string `json:"decisions"`
	Rounds    []struct {
		RawBytes  int64 `json:"raw_bytes"`
		SentBytes int64 `json:"sent_bytes"`
	} `json:"rounds"`
}

// bytes returns the rounds' memory, and its size on the wire.
func (p *precopied) bytes() (raw, sent int64) {
	for _, round := range p.Rounds {
		raw, sent = raw+round.RawBytes, sent+round.SentBytes
	}
	return raw, sent
}

// precopy moves the container.
func (c *container) precopy(flags ...string) precopied {
	c.t.Helper()
	from := c.node
	args := append([]string{"migrate", c.name, c.other(), "--mode", "pre-copy", "--json"}, flags...)
	var p precopied
	if err := json.Unmarshal([]byte(must(c.t, from, args...)), &p); err != nil || p.Result != "moved" {
		c.t.Fatalf("report: %v: %+v", err, p)
	}
	c.node = c.other()
	c.gone(from)
	return p
}

// TestStageAndMigrate: a migration starts from a copy, and sends pages written since.
func TestStageAndMigrate(t *testing.T) {
	c := writer(t)
	s := c.stage()
	if s.State != "ready" || s.Rounds != 1 || s.MemoryBytes < writerBytes || s.SentBytes < writerBytes {
		t.Errorf("staged: %+v", s)
	}
	if at := c.stages("b"); len(at) != 1 || at[0].State != "ready" || at[0].MemoryBytes < writerBytes ||
		at[0].Source != "a" {
		t.Errorf("at the target: %+v", at)
	}
	if again := c.stage("--keep", "2h"); again.Rounds != 2 || !again.Until.After(s.Until) {
		t.Errorf("brought up to date: %+v", again)
	}
	p := c.precopy()
	if raw, _ := p.bytes(); raw > writerBytes/4 ||
		!strings.Contains(strings.Join(p.Decisions, "\n"), "staged at b") {
		t.Errorf("%d bytes of memory were sent although %d were there; decisions: %q", raw, writerBytes,
			p.Decisions)
	}
	if at := c.stages("b"); len(at) > 0 {
		t.Errorf("left at the target: %+v", at)
	}
	c.right()
}

// TestStageKeepFresh: rounds continue automatically until the time is over.
func TestStageKeepFresh(t *testing.T) {
	c := writer(t)
	c.stage("--keep-fresh", "6s", "--keep", "6s", "--bandwidth-limit", "400mbit")
	c.eventually("another round", func() bool { return c.stages("a")[0].Rounds > 1 })
	if !c.tracked() {
		t.Error("it is not tracked")
	}
	if why := c.endedStage(); !strings.Contains(why, "time is over") {
		t.Errorf("it ended because %q", why)
	}
	if c.tracked() {
		t.Error("it is still tracked")
	}
	c.right()
}

// TestStageEnds: a useless copy is removed, and leaves nothing in the container's processes.
func TestStageEnds(t *testing.T) {
	ways := map[string]struct {
		do  func(c *container)
		why string
	}{
		"removed at the source": {func(c *container) { must(t, "a", "stage", "rm", c.name, "b") },
			"removed by a user"},
		"removed at the target": {func(c *container) { must(t, "b", "stage", "rm", c.id[:12], "a") },
			"removed by a user of that node"},
		"moved cold": {func(c *container) { c.migrateBy(cold) }, "began without using the copy"},
	}
	c := writer(t)
	for name, way := range ways {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			if c.node != "a" {
				c.migrate()
			}
			c.stage()
			way.do(c)
			if why := c.endedStage(); !strings.Contains(why, way.why) {
				t.Errorf("it ended because %q", why)
			}
			if c.tracked() {
				t.Error("it is still tracked")
			}
		})
	}
	if c.node != "a" {
		c.migrate()
	}
	c.stage()
	c.right()
	if why := c.endedStage(); !strings.Contains(why, "has ended") {
		t.Errorf("after the container's end: %q", why)
	}
}

// TestStageRefused: invalid requests are refused with the reason.
func TestStageRefused(t *testing.T) {
	c := writer(t)
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"stage", c.name, "a"}, 1, "already on a"},
		{[]string{"stage", c.name, "z"}, 1, "no such node"},
		{[]string{"stage", "nothing", "b"}, 1, "no such container"},
		{[]string{"stage", c.name, "b", "--keep", "1ms"}, 2, "must be between"},
		{[]string{"stage", c.name, "b", "--bandwidth-limit", "1bit"}, 2, "must be between"},
		{[]string{"stage", "rm", c.name, "b"}, 1, "nothing of"},
		{[]string{"stage", c.name}, 2, "usage"},
	} {
		out, err := godwit(t.Context(), "a", test.args...)
		if err != nil || out.code != test.code || !strings.Contains(out.stderr, test.want) {
			t.Errorf("%v: %v, exit code %d: %s", test.args, err, out.code, out.stderr)
		}
	}
}

// residuals lists the residual copies of the container at a node.
func (c *container) residuals(node string) []staged {
	c.t.Helper()
	var kept []staged
	for _, s := range c.stages(node) {
		if s.Kind == "footprint" {
			kept = append(kept, s)
		}
	}
	return kept
}

// TestResidual: a container comes back, and pages unchanged since its departure are not sent.
func TestResidual(t *testing.T) {
	c := writer(t)
	for _, mode := range []string{"pre-copy", "cold"} {
		must(t, "a", "migrate", c.name, "b", "--mode", mode, "--keep-footprint", "1h")
		c.node = "b"
		c.gone("a")
		if kept := c.residuals("a"); len(kept) != 1 || kept[0].MemoryBytes < writerBytes ||
			kept[0].Source != "b" || kept[0].Target != "a" {
			t.Fatalf("after mode %s: %+v", mode, kept)
		}
		p := c.precopy()
		raw, sent := p.bytes()
		if raw < writerBytes || sent > writerBytes/4 {
			t.Errorf("mode %s: of %d bytes %d were sent; decisions: %q", mode, raw, sent, p.Decisions)
		}
		if kept := c.residuals("a"); len(kept) > 0 {
			t.Errorf("left after the return: %+v", kept)
		}
	}
	c.right()
}

// TestResidualAndStage: a copy that is staged on the container's former node uses its residual copy.
func TestResidualAndStage(t *testing.T) {
	c := writer(t)
	c.precopy("--keep-footprint", "1h")
	s := c.stage()
	if s.State != "ready" || s.SentBytes > writerBytes/4 {
		t.Errorf("%+v", s)
	}
	if p := c.precopy(); len(p.Rounds) == 0 {
		t.Errorf("%+v", p)
	}
	c.right()
}

// TestResidualGoes: a residual copy is kept for a limited time, and only if the container can come back.
func TestResidualGoes(t *testing.T) {
	c := writer(t)
	c.precopy("--keep-footprint", "1s")
	c.eventually("the end of its time", func() bool { return len(c.residuals("a")) == 0 })
	c.precopy()
	c.precopy("--keep-footprint", "1h")
	if len(c.residuals("a")) != 1 {
		t.Error("there is none")
	}
	must(t, "a", "stage", "rm", c.name, "b")
	if len(c.residuals("a")) > 0 {
		t.Error("it was not removed")
	}
	c.precopy()
	c.precopy("--keep-footprint", "1h")
	must(t, "b", "rm", "--force", c.name)
	c.eventually("no residual copy of a removed container", func() bool { return len(c.residuals("a")) == 0 })
	c.id = ""
}
