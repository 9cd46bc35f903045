package storm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
)

// Limits for a command of the storm, and for an agent that must not start.
const (
	commandTimeout = 15 * time.Second
	secondTimeout  = 20 * time.Second
)

// happen makes a fault happen when its time has come, perhaps once more later, and undoes it.
func (s *storm) happen(ctx context.Context, f fault, one *running) {
	if !s.come(ctx, f, one) {
		return
	}
	defer s.goOn(f, one)
	about := s.about(ctx, f, one)
	if about == nil || !s.bears(about, f.what) {
		return
	}
	s.count(f.what)
	s.note(about.subject, "%v", f)
	if byStep[f.what] != "" {
		return
	}
	s.complain(about.subject, s.do(ctx, f, about))
	s.goOn(f, one)
	if f.again > 0 && ctx.Err() == nil {
		wait(ctx, f.again)
		s.count(f.what)
		s.note(about.subject, "once more: %v", f)
		s.complain(about.subject, s.do(ctx, f, about))
	}
}

// about returns the migration that a fault hits. Actions of users and operators concern the current one.
// Engines' commands and lost journals concern the one that waits for the fault, which may differ from the
// planned one.
func (s *storm) about(ctx context.Context, f fault, one *running) *running {
	switch f.what {
	case cancels, resolves:
		if all, err := reports(ctx, one.from); err != nil || one.id == "" || !open(all[one.id]) {
			return nil
		}
	}
	if f.what.hitsFrozen() {
		return s.waiting(ctx, f, one.from)
	}
	return one
}

func (s *storm) bears(one *running, kind what) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return one.bears(kind)
}

// waiting returns the migration that waits for a fault at a step of its source, or nil.
func (s *storm) waiting(ctx context.Context, f fault, node string) *running {
	s.mu.Lock()
	all := slices.Clone(s.underWay)
	s.mu.Unlock()
	for _, one := range all {
		if one.from != node {
			continue
		}
		if step, err := stepOf(ctx, node, one.id); err == nil && step == f.point.Step {
			return one
		}
	}
	return nil
}

// come waits until a fault's time has come; false if the round ended before.
func (s *storm) come(ctx context.Context, f fault, one *running) bool {
	if f.point.Step == "" {
		wait(ctx, f.delay)
		return ctx.Err() == nil
	}
	directory, err := runDir(one.node(migration.Side(f.point.Side)))
	if err != nil {
		return false
	}
	for {
		if _, err := os.Lstat(f.point.Reached(directory)); err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		wait(ctx, 2*time.Millisecond)
	}
}

// goOn lets a step continue that has waited for the fault.
func (s *storm) goOn(f fault, one *running) {
	if f.point.Step == "" {
		return
	}
	directory, err := runDir(one.node(migration.Side(f.point.Side)))
	if err == nil {
		err = os.Remove(f.point.Reached(directory))
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.complain(one.subject, err)
	}
}

func (s *storm) count(kind what) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tally.count(kind)
}

// do makes a fault happen.
func (s *storm) do(ctx context.Context, f fault, one *running) error {
	at := one.node(f.side)
	switch f.what {
	case killsAgent:
		return s.keepers[at].signal(ctx, world.lab.KillAgent)
	case killsBoth:
		return errors.Join(s.keepers[one.from].signal(ctx, world.lab.KillAgent),
			s.keepers[one.to].signal(ctx, world.lab.KillAgent))
	case stopsAgent:
		return s.keepers[at].signal(ctx, world.lab.StopAgent)
	case linkDown:
		return s.breakLink(ctx, f, one)
	case cancels:
		return s.cancel(ctx, one)
	case resolves:
		return s.resolve(ctx, f, one)
	case secondAgent:
		return s.startSecond(ctx, at)
	case engineCommand:
		return s.command(ctx, f, one)
	case losesJournal:
		return s.keepers[one.from].signal(ctx, func(ctx context.Context, node string) error {
			return forget(ctx, node, one.id)
		})
	case thawsCopy:
		return s.script(ctx, one, thawsFrozen)
	case killsKeeper:
		return s.script(ctx, one, killsTracer)
	case killsOverlay:
		return s.run(ctx, one, at, "pkill", "-KILL", "-f", "^godwit wireguard-device")
	case killsDaemon:
		return s.restartDaemon(ctx, at)
	case stepKills, stepFails, stepPanics: // the agent's own fault
	}
	return nil
}

// forget kills the agent of a node, and removes the journal of a migration.
func forget(ctx context.Context, node, id string) error {
	if err := world.lab.KillAgent(ctx, node); err != nil {
		return err
	}
	root, err := world.lab.Root(node)
	if err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(root, "var/lib/godwit/migrations", id))
}

// breakLink breaks the link between the two nodes, and repairs it after some time, while the migration's
// steps continue.
func (s *storm) breakLink(ctx context.Context, f fault, one *running) error {
	if err := world.lab.LinkDown(one.from, one.to); err != nil {
		return err
	}
	s.goOn(f, one)
	wait(ctx, f.lasts)
	return world.lab.LinkUp(one.from, one.to)
}

// cancel is a user's request, which may come too late.
func (s *storm) cancel(ctx context.Context, one *running) error {
	of, err := agentOf(one.from)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	_, err = of.Cancel(ctx, &api.MigrationRequest{Migration: one.id})
	s.note(one.subject, "cancel: %v", err)
	return nil
}

// resolve is an operator's decision for a random side, which the nodes may refuse. It waits for the other
// node as long as the operator's patience lasts, so the migration's steps continue meanwhile.
func (s *storm) resolve(ctx context.Context, f fault, one *running) error {
	of, err := agentOf(one.node(f.side))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, f.lasts+time.Second)
	defer cancel()
	side := []string{"source", "target"}[f.pick%2]
	answered := make(chan error, 1)
	go func() {
		_, err := of.Resolve(ctx, &api.ResolveRequest{Migration: one.id, RunsAt: side})
		answered <- err
	}()
	wait(ctx, 300*time.Millisecond)
	s.goOn(f, one)
	s.note(one.subject, "resolve at the %s, runs at %s: %v", f.side, side, <-answered)
	return nil
}

// startSecond starts a second agent on the state of a running one: it has to end by itself.
func (s *storm) startSecond(ctx context.Context, node string) error {
	k := s.keepers[node]
	k.mu.Lock()
	defer k.mu.Unlock()
	first, err := world.lab.AgentPID(node)
	if err != nil || first == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), secondTimeout)
	defer cancel()
	out, err := world.lab.Exec(ctx, node, append([]string{"godwit", "agent", "--faults"}, agentArgs...)...)
	if now, pidErr := world.lab.AgentPID(node); pidErr != nil || now != first {
		return nil // a step killed the first meanwhile, so the second was the only one
	}
	if err == nil || ctx.Err() != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.tally.problems = append(s.tally.problems,
			fmt.Sprintf("a second agent starts on %s: %s %v", node, out, err))
	}
	return nil
}

// command makes the engine at the source do something with the copy left there, which is no longer needed.
func (s *storm) command(ctx context.Context, f fault, one *running) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	all := one.subject.engine.interference(one.subject.name)
	return s.run(ctx, one, one.from, all[f.pick%len(all)]...)
}

// run runs a command on a node. It records the output, and accepts any result.
func (s *storm) run(ctx context.Context, one *running, node string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	out, err := world.lab.Exec(ctx, node, args...)
	s.note(one.subject, "on %s, %.80s: %s %v", node, strings.Join(args, " "), strings.TrimSpace(out), err)
	return nil
}

// script runs a script on the source's node for each process of the container there: its PID is $pid.
func (s *storm) script(ctx context.Context, one *running, each string) error {
	return s.run(ctx, one, one.from, "sh", "-c", `for pid in $(grep -zlsx "$1" /proc/[0-9]*/environ | cut -d/ -f3); do `+each+`
		done`, "sh", variable+"="+one.subject.mark())
}

// thawsFrozen thaws the cgroup of a process as people and engines do, without Godwit.
const thawsFrozen = `groups=/proc/$pid/cgroup
	for mount in $(findmnt -nt cgroup2 -o TARGET | head -n 1); do
		group=$mount$(sed -n 's/^0:://p' $groups)
		! [ -e $group/cgroup.freeze ] || { echo 0 >$group/cgroup.freeze; grep frozen $group/cgroup.events; }
	done
	for mount in $(findmnt -nt cgroup -O freezer -o TARGET | head -n 1); do
		group=$mount$(sed -n 's/^[0-9]*:freezer://p' $groups)
		! [ -e $group/freezer.state ] || { echo THAWED >$group/freezer.state; cat $group/freezer.state; }
	done`

// killsTracer kills the tracer of a process.
const killsTracer = `tracer=$(sed -n 's/^TracerPid:[[:space:]]*//p' /proc/$pid/status)
	! [ "$tracer" -gt 0 ] || { kill -KILL $tracer; echo killed $tracer; }`

// restartDaemon kills the containerd of a node and starts it again.
func (s *storm) restartDaemon(ctx context.Context, node string) error {
	k := s.keepers[node]
	k.daemon.Lock()
	defer k.daemon.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	const kills = "pkill -KILL -f '[c]ontainerd --config /dev/null'; rm -f /run/containerd/containerd.sock"
	if _, err := world.lab.Exec(ctx, node, "sh", "-c", kills); err != nil {
		return err
	}
	return world.lab.Engines().StartContainerd(ctx, node)
}
