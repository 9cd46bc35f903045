package storm

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/lab/labtest"
	"github.com/godwit/godwit/internal/migration"
)

// volatile matches differences between two views of an idle node: numbers of processes and of interfaces,
// and reports of past migrations.
var (
	numbers  = regexp.MustCompile(`^(process \d+|ip \d+:) `)
	volatile = regexp.MustCompile(`/var/lib/godwit/migrations/|/run/godwit/faults|network namespace`)
)

// rehearse moves containers of all kinds once around, removes them, and returns the view of each node:
// objects that the first arrival makes stay for good.
func (s *storm) rehearse(t *testing.T) map[string][]string {
	t.Helper()
	for _, engine := range engines(s.asked.long) {
		one := &subject{name: "rehearses", program: counts, engine: engine, modes: anyMode}
		one.start(t)
		for i, from := range world.nodes {
			one.at = (i + 1) % len(world.nodes)
			s.moves(t, one, from, world.nodes[one.at])
		}
		if err := one.remove(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	before := map[string][]string{}
	for _, node := range world.nodes {
		eventually(t, "a look at "+node, func() (err error) {
			before[node], err = view(t, node)
			return err
		})
	}
	return before
}

// moves moves a container without obstacles.
func (s *storm) moves(t *testing.T, one *subject, from, to string) {
	t.Helper()
	of, err := agentOf(from)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := of.Migrate(t.Context(),
		&api.MigrateRequest{Container: one.reference(), Node: to, Mode: string(migration.Cold), Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{from, to} {
		eventually(t, "the rehearsal's migration to end on "+node, func() error {
			all, err := reports(t.Context(), node)
			r, known := all[reply.Migration]
			switch {
			case err != nil:
				return err
			case !known || open(r):
				return errors.New("it is under way")
			case r.Result != migration.Moved:
				t.Fatalf("%s does not move with nothing in its way: %+v", one.reference(), r)
			}
			return nil
		})
	}
}

// view lists a node's objects that containers and migrations may leave.
func view(t *testing.T, node string) ([]string, error) {
	lines, err := labtest.View(t.Context(), world.lab, node,
		"run/godwit/*/*", "run/netns/*", "run/docker/netns/*", "var/lib/godwit/*", "var/lib/godwit/*/*",
		"var/lib/godwit/engines/*/*")
	if err != nil {
		return nil, err
	}
	var commands [][]string
	for _, engine := range engines(isLong()) {
		commands = append(commands, engine.lists()...)
	}
	for _, command := range commands {
		out, err := world.lab.Exec(t.Context(), node, command...)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(out) {
			lines = append(lines, strings.Join(command, " ")+": "+strings.TrimSpace(line))
		}
	}
	root, err := world.lab.Root(node)
	if err != nil {
		return nil, err
	}
	var kept []string
	for _, line := range lines {
		if line = numbers.ReplaceAllString(strings.ReplaceAll(line, root, ""),
			""); !volatile.MatchString(line) {
			kept = append(kept, line)
		}
	}
	return kept, nil
}

// leaks waits until every object on any node was there before the storm.
func (s *storm) leaks(t *testing.T, before map[string][]string) {
	t.Helper()
	for _, node := range world.nodes {
		var left []string
		err := within(patience, func() error {
			now, err := view(t, node)
			if err != nil {
				return err
			}
			left = slices.DeleteFunc(now,
				func(line string) bool { return slices.Contains(before[node], line) })
			if len(left) > 0 {
				return errors.New("something is left")
			}
			return nil
		})
		if err != nil && len(left) == 0 {
			t.Error(err)
		}
		for _, line := range left {
			s.tally.leaks = append(s.tally.leaks, fmt.Sprintf("on %s: %s", node, line))
		}
		log, err := os.ReadFile(world.lab.AgentLog(node))
		if err != nil {
			t.Error(err)
		}
		for _, line := range crashed(string(log)) {
			s.tally.problems = append(s.tally.problems,
				fmt.Sprintf("the agent of %s crashed: %s", node, line))
		}
	}
}
