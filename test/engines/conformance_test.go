package engines

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/engine"
)

// subject is an engine whose containers the conformance suite moves, from its users' view.
type subject interface {
	// name returns Godwit's name of the engine.
	name() string
	// version returns the version that the engine reports.
	version(t *testing.T) string
	// run starts a container with the requested properties, and runs a script.
	run(t *testing.T, node, container string, asked []string, script string)
	// execs returns the command line with which the engine runs a script in a container, as a user; "": the
	// container's own.
	execs(container, user, script string) []string
	// logs returns the command line that shows a container's output.
	logs(container string) []string
	// told returns everything that the engine reports about the container, by name; values whose name
	// contains one of unlike may differ on another node.
	told(t *testing.T, node, container string) map[string]string
	unlike() []string
	// does returns the engine's command for an operation on a container; nil: it has none.
	does(what verb, container string) []string
	// listing returns the command that lists all containers.
	listing() []string
	// nothing checks that a node has nothing of a container.
	nothing(t *testing.T, node, container string)
}

// verb is an operation of an engine on a container.
type verb string

const (
	pause   verb = "pause"
	unpause verb = "unpause"
	stop    verb = "stop"
	start   verb = "start"
	remove  verb = "rm"
)

// subjects of the suite.
func subjects() []subject {
	return []subject{embedded{}, byDocker{byCommand{inDocker}}, byPodman{byCommand{inPodman}}, inContainerd{},
		inLXC{}}
}

// TestConformance moves containers of each engine with all properties that its containers can have. They
// must be the same at the other node, and after their return, according to the engine and the kernel.
func TestConformance(t *testing.T) {
	for _, s := range subjects() {
		t.Run(titleOf(s), func(t *testing.T) {
			c := conformance{s: s, found: newFindings(t, s)}
			t.Run("everything", c.everything)
			for _, p := range apartProperties() {
				if _, has := p.asked[s.name()]; has && !testing.Short() {
					t.Run(p.name, func(t *testing.T) { c.apart(t, p) })
				}
			}
			if restarting, can := s.(restarter); can && !testing.Short() {
				t.Run("restarting", func(t *testing.T) { c.restarting(t, restarting) })
			}
			if served, can := s.(server); can && !testing.Short() {
				t.Run("connections", func(t *testing.T) { c.connections(t, served) })
			}
			c.found.write(t)
		})
	}
}

func titleOf(s subject) string {
	if s.name() == ownEngine {
		return "godwit"
	}
	return s.name()
}

// conformance is the suite for one engine.
type conformance struct {
	s     subject
	found *findings
}

// godwitName returns Godwit's name for a container.
func godwitName(s subject, container string) string {
	return engine.Label(engine.Definition{EngineName: s.name(), Name: container})
}

// begins starts a container on node a, which is removed from any node in the end.
func (c conformance) begins(t *testing.T, container string, asked []string, script string) {
	t.Helper()
	t.Cleanup(func() { c.removed(container) })
	c.s.run(t, "a", container, asked, script)
}

func (c conformance) removed(container string) {
	for _, node := range nodes() {
		// it is on one of them, or on none
		_, _ = world.lab.Exec(context.Background(), node, c.s.does(remove, container)...)
	}
}

// migrate returns the output if the move fails.
func (c conformance) migrate(t *testing.T, container, from, to, mode string) error {
	t.Helper()
	return tried(t, from, "godwit", "migrate", "--mode", mode, godwitName(c.s, container), to)
}

func (c conformance) counted(t *testing.T, node, container string, beyond int) int {
	t.Helper()
	return countedIn(t, container+" on "+node, func() string { return in(t, node, c.s.logs(container)...) },
		beyond)
}

// seen returns Godwit's description of a container.
func (c conformance) seen(t *testing.T, node, container string) (one engine.Container) {
	t.Helper()
	if err := json.Unmarshal([]byte(in(t, node, "godwit", "inspect", godwitName(c.s, container))),
		&one); err != nil {
		t.Fatal(err)
	}
	return one
}

// look returns the properties of a container, according to the kernel and to itself.
func (c conformance) look(t *testing.T, node, container string, all []property) map[string]string {
	t.Helper()
	now := shown(in(t, node, c.s.execs(container, "", looked(all, false))...))
	outside := fmt.Sprintf("PID=%d\n%s", c.seen(t, node, container).PID, looked(all, true))
	maps.Copy(now, shown(in(t, node, "sh", "-c", outside)))
	return now
}

// same compares the current state of a container with an earlier one.
func (c conformance) same(t *testing.T, what string, was, is map[string]string) {
	t.Helper()
	names := maps.Clone(was)
	maps.Copy(names, is)
	for name := range names {
		value := was[name]
		if is[name] != value && !slices.ContainsFunc(c.s.unlike(),
			func(one string) bool { return strings.Contains(name, one) }) {
			t.Errorf("%s: %s is %q, was %q", what, name, onlyIn(is[name], value), onlyIn(value, is[name]))
		}
	}
}

// onlyIn returns the lines of a text that another text lacks.
func onlyIn(text, other string) string {
	lines := slices.DeleteFunc(strings.Split(text, "\n"),
		func(line string) bool { return slices.Contains(strings.Split(other, "\n"), line) })
	return strings.Join(lines, "\n")
}

// lacking is an engine some of whose versions lack features.
type lacking interface {
	// lacks returns what its version lacks for a property; "": nothing.
	lacks(t *testing.T, p property) string
}

// possible returns the properties for which the engine's version lacks nothing, and records the others as
// not tried.
func (c conformance) possible(t *testing.T, all []property) []property {
	t.Helper()
	s, is := c.s.(lacking)
	if !is {
		return all
	}
	return slices.DeleteFunc(all, func(p property) bool {
		p.unable = s.lacks(t, p)
		if p.unable != "" {
			t.Logf("%s: %s%s", p.name, propertyUnable, p.unable)
			c.found.unable(p)
		}
		return p.unable != ""
	})
}

// everything moves one container with all properties, in all modes.
func (c conformance) everything(t *testing.T) {
	const container = "everything"
	asked, has := askedFor(c.s.name(), c.possible(t, properties()))
	c.begins(t, container, asked, countUntilTold)
	in(t, "a", c.s.execs(container, "0",
		`echo kept >/file; for d in /scratch /dev/shm /data /own; do [ ! -d $d ] || echo kept >$d/x; done`)...)
	at := c.counted(t, "a", container, 1)
	was, told := c.look(t, "a", container, has), c.s.told(t, "a", container)
	for _, p := range has {
		if len(p.asked[c.s.name()]) > 0 && !strings.Contains(was[p.name], p.want) {
			t.Errorf("%s is %q before it moves, want %q", p.name, was[p.name], p.want)
		}
	}
	c.refused(t, container)
	from, to := "a", "b"
	for _, mode := range modes() {
		if err := c.migrate(t, container, from, to, mode); err != nil {
			t.Fatalf("%s from %s to %s: %v", mode, from, to, err)
		}
		c.s.nothing(t, from, container)
		from, to = to, from
		at = c.counted(t, from, container, at)
		what := mode + " to " + from
		c.same(t, what, was, c.look(t, from, container, has))
		c.same(t, what, told, c.s.told(t, from, container))
		if said := in(t, from, "godwit", "exec", godwitName(c.s, container), "/bin/sh", "-c",
			"echo hello"); said != "hello" {
			t.Errorf("%s: godwit exec: %q", what, said)
		}
		if listed := in(t, from, "godwit", "ps"); !strings.Contains(listed, godwitName(c.s, container)) {
			t.Errorf("%s: godwit ps has it not: %s", what, listed)
		}
		c.found.moved(mode, !t.Failed())
	}
	c.found.has(has, !t.Failed())
	c.isOrdinary(t, from, container)
}

// countUntilTold counts until the stop signal of the suite asks it to end.
const countUntilTold = `trap 'echo told; exit 7' USR1; ` + count

// refused tries to move a container that cannot be moved now, and checks that it keeps running.
func (c conformance) refused(t *testing.T, container string) {
	t.Helper()
	if paused := c.s.does(pause, container); paused != nil {
		in(t, "a", paused...)
		if err := c.migrate(t, container, "a", "b", "cold"); err == nil ||
			!strings.Contains(err.Error(), "paused") {
			t.Errorf("a paused container: %v", err)
		}
		in(t, "a", c.s.does(unpause, container)...)
	}
	c.s.run(t, "b", container, nil, count)
	if err := c.migrate(t, container, "a", "b", "cold"); err == nil ||
		!strings.Contains(err.Error(), container) || !strings.Contains(err.Error(), "on this node has it") {
		t.Errorf("a name that is taken: %v", err)
	}
	in(t, "b", c.s.does(remove, container)...)
	c.counted(t, "a", container, c.counted(t, "a", container, 1))
}

// isOrdinary checks that the engine treats a container that has moved like any other.
func (c conformance) isOrdinary(t *testing.T, node, container string) {
	t.Helper()
	if paused := c.s.does(pause, container); paused != nil {
		in(t, node, paused...)
		in(t, node, c.s.does(unpause, container)...)
	}
	in(t, node, c.s.does(stop, container)...)
	eventually(t, "it has ended", func() bool { return c.seen(t, node, container).State == engine.Exited })
	// LXC does not report it
	if code := c.seen(t, node, container).ExitCode; code != 7 && c.s.name() != lxcEngine {
		t.Errorf("stopped, it ended with %d", code)
	}
	if again := c.s.does(start, container); again != nil {
		in(t, node, again...)
		eventually(t, "it runs again",
			func() bool { return c.seen(t, node, container).State == engine.Running })
	}
	in(t, node, c.s.does(remove, container)...)
	for _, node := range nodes() {
		c.s.nothing(t, node, container)
	}
}

// apart moves a container with a property that may be refused, there and back.
func (c conformance) apart(t *testing.T, p property) {
	container := "with-" + strings.ReplaceAll(p.name, " ", "-")
	c.begins(t, container, p.asked[c.s.name()], count)
	c.counted(t, "a", container, 1)
	all := []property{p}
	was := c.look(t, "a", container, all)
	if !strings.Contains(was[p.name], p.want) {
		t.Errorf("it is %q, want %q", was[p.name], p.want)
	}
	err := c.migrate(t, container, "a", "b", "pre-copy")
	if err != nil && p.unable != "" && strings.Contains(err.Error(), p.unable) {
		c.found.unable(p)
		return
	}
	if err != nil && p.refusal != "" && strings.Contains(err.Error(), p.refusal) {
		c.counted(t, "a", container, c.counted(t, "a", container, 1))
		c.s.nothing(t, "b", container)
		c.found.refused(p)
		return
	}
	if err == nil {
		c.s.nothing(t, "a", container)
		c.same(t, "there", was, c.look(t, "b", container, all))
		err = c.migrate(t, container, "b", "a", "cold")
	}
	if err != nil {
		t.Fatal(err)
	}
	c.same(t, "back", was, c.look(t, "a", container, all))
	c.counted(t, "a", container, c.counted(t, "a", container, 1))
	c.found.has(all, !t.Failed())
}

// restarter is an engine that restarts containers by itself at once.
type restarter interface {
	// restarts returns the number of restarts.
	restarts(t *testing.T, node, container string) string
}

// restarting: a container that its engine restarts again and again does not move while it is not running,
// and continues like that.
func (c conformance) restarting(t *testing.T, r restarter) {
	const container = "restarting"
	c.begins(t, container, []string{"--restart", "always"}, "exit 3")
	more := func() {
		before := r.restarts(t, "a", container)
		eventually(t, "it is started again", func() bool { return r.restarts(t, "a", container) != before })
	}
	more()
	if err := c.migrate(t, container, "a", "b", "cold"); err == nil {
		t.Error("it moved")
	}
	c.s.nothing(t, "b", container)
	more()
}

// server is an engine whose containers keep their connections.
type server interface {
	// serves returns the request for a container that others can reach, and prepares the engine for it.
	serves(t *testing.T) (asked []string)
	// address returns where the container then answers on port 80.
	address(t *testing.T, container string) string
}

// connections: a client's connections survive every move of their container.
func (c conformance) connections(t *testing.T, s server) {
	const container = "connections"
	makeClients(t)
	c.begins(t, container, s.serves(t), echo)
	address := s.address(t, container)
	all := []*conversation{talk(t, clientMachine, address), talk(t, clientMachine, address)}
	from, to := "a", "b"
	for _, mode := range modes() {
		whileTalking(t, all[0], func() {
			if err := c.migrate(t, container, from, to, mode); err != nil {
				t.Fatal(err)
			}
		})
		from, to = to, from
		all = append(all, talk(t, clientMachine, address))
		for _, one := range all {
			one.ask(t)
		}
		c.found.kept(mode, !t.Failed())
	}
}
