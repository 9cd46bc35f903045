package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/lab/labtest"
	"github.com/godwit/godwit/internal/migration"
)

// patience is how long a condition may take to come true on a machine that is busy with other things.
const patience = 2 * time.Minute

// commandTimeout ends a command that hangs.
const commandTimeout = 5 * time.Minute

// container is a container of a test; it is removed from its node at the end of the test.
type container struct {
	t    *testing.T
	name string
	id   string
	node string // its expected node
	turn int    // index of its next migration's mode

	volumes []string
}

// output of a command in a node.
type output struct {
	stdout, stderr string
	code           int
}

// godwit runs the command line in a node.
func godwit(ctx context.Context, node string, args ...string) (output, error) {
	return command(ctx, node, "", append([]string{"godwit"}, args...)...)
}

func command(ctx context.Context, machine, stdin string, args ...string) (output, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cmd, err := world.lab.Command(ctx, machine, args...)
	if err != nil {
		return output{}, err
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	err = cmd.Run()
	if _, exited := err.(*exec.ExitError); exited {
		err = nil
	}
	return output{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}, err
}

// must runs the command line and fails the test unless it succeeds.
func must(t *testing.T, node string, args ...string) string {
	t.Helper()
	out, err := godwit(t.Context(), node, args...)
	if err != nil || out.code != 0 {
		t.Fatalf("%s: godwit %s: %v, exit code %d: %s%s", node, strings.Join(args, " "), err, out.code,
			out.stdout, out.stderr)
	}
	return out.stdout
}

// run starts a container on node a, with flags of `godwit run` and a command, and waits until it reports
// that it is ready.
func run(t *testing.T, flags []string, args ...string) *container {
	t.Helper()
	return runImage(t, image, flags, args...)
}

func runImage(t *testing.T, image string, flags []string, args ...string) *container {
	t.Helper()
	clean := func(r rune) rune {
		if (r >= 'a' && r <= 'z') || (r >= '0' && r <= '9') || r == '-' {
			return r
		}
		return '-'
	}
	name := strings.Trim(strings.Map(clean, strings.ToLower(strings.TrimPrefix(t.Name(), "Test"))), "-")
	// This gives all modes their turn.
	c := &container{t: t, name: name, node: "a", turn: len(t.Name()), volumes: volumesOf(flags)}
	t.Cleanup(c.remove)
	command := append(append([]string{"run", "-d", "--name", name}, flags...), image)
	c.id = strings.TrimSpace(must(t, "a", append(command, args...)...))
	c.awaitLog("ready")
	return c
}

// volumesOf returns the named volumes in the flags of a container.
func volumesOf(flags []string) (volumes []string) {
	for i, flag := range flags {
		if flag == "-v" {
			if volume, _, _ := strings.Cut(flags[i+1], ":"); !strings.HasPrefix(volume, "/") {
				volumes = append(volumes, volume)
			}
		}
	}
	return volumes
}

// state starts a container with a workload.
func state(t *testing.T, flags []string, args ...string) *container {
	t.Helper()
	return run(t, flags, append([]string{"/bin/state"}, args...)...)
}

// remove removes the container from the nodes that have it. If no node has it, it was lost, which is an
// error.
func (c *container) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if c.t.Failed() {
		c.show(ctx)
	}
	found := 0
	for _, node := range nodes() {
		if out, err := godwit(ctx, node, "inspect", c.name); err != nil || out.code != 0 {
			continue
		}
		found++
		if out, err := godwit(ctx, node, "rm", "--force", c.name); err != nil || out.code != 0 {
			c.t.Errorf("remove %s from %s: %v: %s", c.name, node, err, out.stderr)
		}
	}
	if c.id == "" {
		return
	}
	if found != 1 {
		c.t.Errorf("container %s was on %d nodes at the end", c.name, found)
	}
	for _, node := range nodes() {
		c.gone(node)
	}
	c.removeVolumes()
}

// removeVolumes removes the volumes that outlive their container. They must be on its node only.
func (c *container) removeVolumes() {
	for _, volume := range c.volumes {
		for _, node := range nodes() {
			root, _, err := place(node)
			if err != nil {
				c.t.Error(err)
				continue
			}
			path := filepath.Join(root, "var/lib/godwit/volumes", volume)
			if _, err := os.Lstat(path); err == nil && node != c.node {
				c.t.Errorf("volume %s is on %s, too", volume, node)
			}
			if err := os.RemoveAll(path); err != nil {
				c.t.Error(err)
			}
		}
	}
}

// show prints information about a failed test.
func (c *container) show(ctx context.Context) {
	for _, node := range nodes() {
		if out, err := godwit(ctx, node, "logs", "--tail", "20", c.name); err == nil && out.code == 0 {
			c.t.Logf("end of its output, on %s:\n%s%s", node, out.stdout, out.stderr)
		}
	}
}

// awaitLog waits until the container's output has a text.
func (c *container) awaitLog(text string) {
	c.t.Helper()
	c.eventually("output of "+text, func() bool {
		out := c.logs()
		if strings.Contains(out.stdout, "bad: ") {
			c.t.Fatalf("it cannot be set up: %s", out.stdout)
		}
		return strings.Contains(out.stdout, text)
	})
}

func (c *container) logs() output {
	c.t.Helper()
	out, err := godwit(c.t.Context(), c.node, "logs", c.name)
	if err != nil || out.code != 0 {
		c.t.Fatalf("logs: %v, exit code %d: %.2000s", err, out.code, out.stderr)
	}
	return out
}

// eventually polls a condition.
func (c *container) eventually(what string, condition func() bool) {
	c.t.Helper()
	if !labtest.Within(patience, condition) {
		c.t.Fatalf("not within %s: %s", patience, what)
	}
}

// exec runs a command in the container.
func (c *container) exec(args ...string) output {
	c.t.Helper()
	out, err := godwit(c.t.Context(), c.node, append([]string{"exec", c.name}, args...)...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// ask sends a command to the workload and returns its answer, without the newline.
func (c *container) ask(command ...string) string {
	c.t.Helper()
	out := c.exec(append([]string{"/bin/state", "ask"}, command...)...)
	if out.code != 0 {
		c.t.Fatalf("on %s, %s: exit code %d: %s%s", c.node, strings.Join(command, " "), out.code, out.stdout,
			out.stderr)
	}
	return strings.TrimSuffix(out.stdout, "\n")
}

// ok sends a command to the workload, which must find no error.
func (c *container) ok(command ...string) {
	c.t.Helper()
	if answer := c.ask(command...); answer != "ok" {
		c.t.Errorf("on %s, %s:\n%s", c.node, strings.Join(command, " "), answer)
	}
}

// inspected is the part of `godwit inspect` that the tests need.
type inspected struct {
	Definition struct {
		ID      string `json:"id"`
		Network struct {
			Address string `json:"address"`
		} `json:"network"`
	} `json:"definition"`
	State string `json:"state"`
	PID   int    `json:"pid"`
}

func (c *container) inspect() inspected {
	c.t.Helper()
	var i inspected
	if err := json.Unmarshal([]byte(must(c.t, c.node, "inspect", c.name)), &i); err != nil {
		c.t.Fatal(err)
	}
	return i
}

func (c *container) address() string {
	c.t.Helper()
	return c.inspect().Definition.Network.Address
}

func (c *container) other() string {
	if c.node == "a" {
		return "b"
	}
	return "a"
}

// The modes of migrations.
const (
	cold     = "cold"
	preCopy  = "pre-copy"
	postCopy = "post-copy"
	hybrid   = "hybrid"
	restart  = "restart"
)

// modes returns the modes that migrate uses in turn.
func modes() []string { return []string{preCopy, cold, postCopy} }

// report is the part of a migration's report that the tests need.
type report struct {
	Migration string  `json:"migration"`
	Mode      string  `json:"mode"`
	Result    string  `json:"result"`
	Error     *string `json:"error"`
	Rounds    []struct {
		Pages int `json:"pages"`
	} `json:"rounds"`
	Push            *migration.Push `json:"drain"`
	DowntimeSeconds float64         `json:"downtime_seconds"`
	TotalSeconds    float64         `json:"total_seconds"`
}

// migrate moves the container to the other node, with the modes in turn.
func (c *container) migrate() {
	c.t.Helper()
	c.migrateBy(modes()[c.turn%len(modes())])
	c.turn++
}

// migrateBy moves the container to the other node and checks that nothing of it is left on its old node.
func (c *container) migrateBy(mode string, more ...string) report {
	c.t.Helper()
	from := c.node
	flags := append([]string{"--mode", mode, "--json", "--wait"}, more...)
	if mode == hybrid { // nothing fits, so memory follows
		flags = append(flags, "--downtime-target", "1ms", "--max-rounds", "2")
	}
	out, err := godwit(c.t.Context(), from, append([]string{"migrate", c.name, c.other()}, flags...)...)
	if err != nil || out.code != 0 {
		c.t.Fatalf("migrate from %s: %v, exit code %d: %s%s", from, err, out.code, out.stdout, out.stderr)
	}
	var r report
	if err := json.Unmarshal([]byte(out.stdout), &r); err != nil || r.Result != "moved" || r.Error != nil ||
		r.Mode != mode {
		c.t.Errorf("report: %v: %s", err, out.stdout)
	}
	if (mode == preCopy || mode == hybrid) && (len(r.Rounds) < 2 || r.Rounds[0].Pages == 0) {
		c.t.Errorf("rounds of a pre-copy: %+v", r.Rounds)
	}
	if d := r.Push; mode == postCopy && (d == nil || d.RemotePages == 0) || d != nil &&
		(d.LeftPages > 0 || d.LostPages > 0) {
		c.t.Errorf("memory that followed in mode %s: %+v", mode, d)
	}
	c.node = c.other()
	c.gone(from)
	if i := c.inspect(); i.State != "running" || i.Definition.ID != c.id {
		c.t.Errorf("after the move it is %+v", i)
	}
	return r
}

// survives moves the container there and back, and lets the workload check itself before, between and
// after.
func (c *container) survives() {
	c.t.Helper()
	c.ok("check")
	for range 2 {
		c.migrate()
		c.ok("check")
	}
}

// refused tries to move the container and checks that the refusal contains these words about the obstacle.
// The container must be unchanged.
func (c *container) refused(words ...string) {
	c.t.Helper()
	before := c.inspect()
	for _, dryRun := range []bool{true, false} {
		args := []string{"migrate", c.name, c.other()}
		if dryRun {
			args = append(args, "--dry-run")
		}
		out, err := godwit(c.t.Context(), c.node, args...)
		if err != nil || out.code != 1 {
			c.t.Fatalf("%v: %v, exit code %d: %s%s", args, err, out.code, out.stdout, out.stderr)
		}
		for _, word := range words {
			if !strings.Contains(out.stdout+out.stderr, word) {
				c.t.Errorf("%v says nothing of %q: %s%s", args, word, out.stdout, out.stderr)
			}
		}
	}
	if after := c.inspect(); fmt.Sprint(after) != fmt.Sprint(before) {
		c.t.Errorf("it was %+v and is %+v after a refusal", before, after)
	}
	c.gone(c.other())
}
