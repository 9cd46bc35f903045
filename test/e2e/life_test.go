package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLimits checks the limits of a container's cgroup: by their effect on its processes, and in the
// kernel's files.
func TestLimits(t *testing.T) {
	t.Parallel()
	c := state(t, []string{"--memory", "64m", "--cpus", "0.5", "--pids", "40"}, "limits")
	c.cgroupLimits()
	c.survivesWith(c.cgroupLimits)
}

// survivesWith is survives with an additional check after each move.
func (c *container) survivesWith(check func()) {
	c.t.Helper()
	c.ok("check")
	for range 2 {
		c.migrate()
		c.ok("check")
		check()
	}
}

// cgroupLimits checks the files of the cgroups, of either version.
func (c *container) cgroupLimits() {
	c.t.Helper()
	root, _, err := place(c.node)
	if err != nil {
		c.t.Fatal(err)
	}
	for name, alternatives := range map[string][]string{
		"memory": {"memory.max 67108864", "memory.limit_in_bytes 67108864"},
		"cpu":    {"cpu.max 50000 100000", "cpu.cfs_quota_us 50000"},
		"pids":   {"pids.max 40"},
	} {
		if !c.hasCgroupFile(root, alternatives) {
			c.t.Errorf("on %s the limit of %s is not set", c.node, name)
		}
	}
}

func (c *container) hasCgroupFile(root string, alternatives []string) bool {
	for _, alternative := range alternatives {
		name, value, _ := strings.Cut(alternative, " ")
		for _, pattern := range []string{"sys/fs/cgroup/*/%s/%s", "sys/fs/cgroup/*/*/%s/%s"} {
			paths, _ := filepath.Glob(filepath.Join(root, fmt.Sprintf(pattern, c.id, name)))
			for _, path := range paths {
				if content, err := os.ReadFile(path); err == nil &&
					strings.TrimSpace(string(content)) == value {
					return true
				}
			}
		}
	}
	return false
}

// TestTerminal moves a container that was started with -t.
func TestTerminal(t *testing.T) {
	t.Parallel()
	c := state(t, []string{"-t"}, "terminal")
	said := 0
	check := func() {
		said++
		c.eventually("what it says on its terminal", func() bool {
			return strings.Count(c.logs().stdout, "said on the terminal\r\n") == said
		})
	}
	c.ok("check")
	check()
	for range 2 {
		c.migrate()
		c.ok("check")
		check()
	}
}

// TestOutput moves a container that writes numbered lines to both of its outputs, in bursts larger than the
// pipes and steadily, so that it is frozen in the middle of writes and of lines.
func TestOutput(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"bursts": {"numbers", "10000", "50"}, "steady": {"numbers", "5", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := state(t, nil, args...)
			c.ok("start")
			for range 4 {
				c.migrate()
				c.ok("check")
			}
			c.ok("stop")
			out := c.logs()
			consecutive(t, "out", strings.TrimPrefix(out.stdout, "ready\n"), 1000)
			consecutive(t, "err", out.stderr, 1000)
		})
	}
}

// consecutive expects "word 0", "word 1", … "word end".
func consecutive(t *testing.T, word, text string, least int) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i, line := range lines[:len(lines)-1] {
		if want := fmt.Sprintf("%s %d", word, i); line != want {
			t.Fatalf("line %d of %d is %q, not %q", i, len(lines), line, want)
		}
	}
	if last := lines[len(lines)-1]; last != word+" end" {
		t.Errorf("the last line is %q", last)
	}
	if len(lines) < least {
		t.Errorf("only %d lines of %s", len(lines), word)
	}
}

// TestFollowedLogs follows a container's output at each node: -f shows the complete output there, from the
// first line.
func TestFollowedLogs(t *testing.T) {
	t.Parallel()
	c := state(t, nil, "numbers", "5", "1")
	c.ok("start")
	c.migrate()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd, err := world.lab.Command(ctx, c.node, "godwit", "logs", "--follow", c.name)
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.ok("stop")
	must(t, c.node, "stop", "--time", "0s", c.name)
	if err := cmd.Wait(); err != nil {
		t.Errorf("logs --follow: %v: %s", err, errs.String())
	}
	consecutive(t, "out", strings.TrimPrefix(out.String(), "ready\n"), 100)
	consecutive(t, "err", errs.String(), 100)
}

// TestExec runs processes in a container before and after it is moved.
func TestExec(t *testing.T) {
	t.Parallel()
	c := run(t, []string{"-e", "MINE=1", "-w", "/tmp"}, "/bin/sh", "-c",
		"trap 'echo heard' USR1; echo ready; while :; do sleep 0.05; done")
	for move := range 3 {
		if move > 0 {
			c.migrate()
		}
		for _, one := range []struct {
			flags   []string
			command string
			want    output
		}{
			{nil, "id -u; id -g; pwd; echo $MINE $FROM_IMAGE", output{stdout: "0\n0\n/tmp\n1 yes\n"}},
			{[]string{"--user", "ann:50", "-w", "/etc", "-e", "X=y z"},
				"id -u; id -g; pwd; echo $X >&2; exit 37",
				output{stdout: "1001\n50\n/etc\n", stderr: "y z\n", code: 37}},
			{[]string{"-i"}, "cat; exit 3", output{stdout: "through the pipe", code: 3}},
			{nil, "kill -9 $$", output{code: 137}},
		} {
			args := append(append([]string{"godwit", "exec"}, one.flags...), c.name, "/bin/sh", "-c",
				one.command)
			got, err := command(t.Context(), c.node, "through the pipe", args...)
			if err != nil || got != one.want {
				t.Errorf("on %s, %v: %+v, %v; want %+v", c.node, args, got, err, one.want)
			}
		}
		if out := c.exec("/bin/sh", "-c", "kill -USR1 1"); out.code != 0 {
			t.Errorf("signal on %s: %s", c.node, out.stderr)
		}
		c.eventually("its answer to a signal",
			func() bool { return strings.Count(c.logs().stdout, "heard") == move+1 })
	}
	// It ends on its node, which knows the exit code.
	must(t, c.node, "stop", "--time", "0s", c.name)
	if out, err := godwit(t.Context(), c.node, "wait", c.name); err != nil || out.code != 137 {
		t.Errorf("its exit code: %v, %d", err, out.code)
	}
}
