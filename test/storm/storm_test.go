package storm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/agent"
	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// roundLimit is how long the faults of a round last at most; then no obstacles remain.
const roundLimit = 30 * time.Second

// refusalPause is the pause after a container's migration was refused.
const refusalPause = 200 * time.Millisecond

// storm is the state of a storm.
type storm struct {
	asked    asked
	subjects []*subject
	monitor  *monitor
	keepers  map[string]*nodeKeeper
	revival  time.Duration // of the round
	number   int           // of the round
	tally    tally
	before   figures // of the earlier runs that this one continues

	mu       sync.Mutex // of subjects' events, the tally and other data that faults change concurrently
	underWay []*running // the round's migrations
}

// running is a migration of a round.
type running struct {
	subject  *subject
	from, to string
	mode     migration.Mode
	spill    bool
	id       string // empty: refused

	touched  bool // the frozen copy was thawed or killed
	released bool // its keeper was killed
}

// bears reports whether a migration promises to tolerate one more fault, and notes the fault: a copy whose
// keeper was killed may run when it is thawed, and lose memory when it is killed.
func (r *running) bears(kind what) bool {
	switch kind {
	case killsKeeper:
		if r.touched {
			return false
		}
		r.released = true
	case thawsCopy, engineCommand:
		if r.released {
			return false
		}
		r.touched = true
	}
	return true
}

// node returns the node at a side.
func (r *running) node(side migration.Side) string {
	if side == migration.Target {
		return r.to
	}
	return r.from
}

// TestStorm moves containers at random while every possible fault happens. None may run twice, be lost, or
// leave anything behind.
func TestStorm(t *testing.T) {
	s := &storm{asked: ask(t), keepers: map[string]*nodeKeeper{}}
	s.resume(t)
	t.Logf("STORM_SEED=%d", s.asked.seed)
	before := s.rehearse(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	t.Cleanup(func() { s.saveLogs(t) })
	defer s.keep(ctx)()
	began := time.Now()
	for s.goesOn(began) && !t.Failed() {
		s.act(ctx, t, began)
		s.leaks(t, before)
		s.tally.seconds = time.Since(began).Seconds()
		s.tell(t)
	}
}

// goesOn reports whether more migrations are needed, and there is time for them.
func (s *storm) goesOn(began time.Time) bool {
	return s.tally.migrations < s.asked.migrations && time.Since(began) < s.asked.limit
}

// act starts new containers, runs the rounds for an act's migrations, and removes the containers.
func (s *storm) act(ctx context.Context, t *testing.T, began time.Time) {
	t.Helper()
	s.subjects = cast(s.asked.long)
	s.monitor = newMonitor(s.subjects)
	for _, one := range s.subjects {
		one.start(t)
	}
	go s.monitor.watch()
	end := sync.OnceFunc(s.monitor.end)
	t.Cleanup(end)
	s.rage(ctx, t, began)
	s.finish(t)
	end()
	s.tally.watched(s.monitor)
	s.removeAll(t)
}

// keep restarts ended agents; the returned function stops that, and waits for its end.
func (s *storm) keep(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var keepers sync.WaitGroup
	for _, node := range world.nodes {
		k := &nodeKeeper{node: node,
			delay: func() time.Duration { s.mu.Lock(); defer s.mu.Unlock(); return s.revival }}
		s.keepers[node] = k
		keepers.Go(func() { k.keep(ctx) })
	}
	return func() { cancel(); keepers.Wait() }
}

// rage runs one round after the other until there were enough migrations, or time is over.
func (s *storm) rage(ctx context.Context, t *testing.T, began time.Time) {
	t.Helper()
	var modes [][]migration.Mode
	for _, one := range s.subjects {
		modes = append(modes, one.modes)
	}
	if err := s.rest(ctx); err != nil {
		t.Fatal(err)
	}
	for last := s.tally.migrations + s.asked.act; s.tally.migrations < last && s.goesOn(began); s.number++ {
		r := planRound(s.asked.seed, s.number, len(world.nodes), s.asked.climate, modes)
		s.mu.Lock()
		s.revival, s.underWay = r.revival, nil
		s.mu.Unlock()
		started := time.Now()
		if err := s.round(ctx, r); err != nil {
			t.Fatalf("the lab is broken: %v", err)
		}
		raged := time.Since(started)
		if err := s.judge(ctx); err != nil {
			s.tally.watched(s.monitor)
			s.tell(t)
			t.Fatalf("STORM_SEED=%d, round %d: %v", s.asked.seed, s.number, err)
		}
		t.Logf("round %d at %.0f s: %.1f s and %.1f s to rest; so far %d migrations, %d faults",
			s.number, time.Since(began).Seconds(), raged.Seconds(), (time.Since(started) - raged).Seconds(),
			s.tally.migrations, s.tally.faultCount())
	}
}

// round moves some containers while faults happen, and then removes all obstacles.
func (s *storm) round(ctx context.Context, r round) error {
	ctx, over := context.WithTimeout(ctx, roundLimit)
	defer over()
	s.monitor.heals(false)
	raging, calm := context.WithCancel(ctx)
	defer calm()
	var trips, faults sync.WaitGroup
	last := time.Now().Add(r.begins)
	for i, one := range r.trips {
		for k := range one.moves {
			var mine []fault
			for _, f := range r.faults {
				if f.trip == i && f.move == k {
					mine = append(mine, f)
				}
			}
			one.moves[k].faults = mine
		}
		trips.Go(func() { s.travel(ctx, raging, one, last, &faults) })
	}
	trips.Wait()
	calm()
	faults.Wait()
	return s.heal()
}

// travel migrates a container again and again, until time is over or its location is unknown.
func (s *storm) travel(ctx, raging context.Context, trip trip, last time.Time, faults *sync.WaitGroup) {
	subject := s.subjects[trip.container]
	at := subject.at
	for i, m := range trip.moves {
		if i > 0 && time.Now().After(last) {
			return
		}
		next := (at + m.way) % len(world.nodes)
		one := &running{subject: subject, from: world.nodes[at], to: world.nodes[next], mode: m.mode,
			spill: m.spill}
		for _, f := range m.faults {
			if f.point.Step != "" {
				s.complain(subject, s.set(one, f))
			}
		}
		s.begin(ctx, one)
		for _, f := range m.faults {
			faults.Go(func() { s.happen(raging, f, one) })
		}
		switch result := s.await(ctx, one); {
		case result == migration.Moved:
			at = next
		case one.id == "":
			wait(ctx, refusalPause)
		case result == "":
			return
		}
	}
}

// complain records an error of the storm itself.
func (s *storm) complain(about *subject, err error) {
	if err != nil {
		s.note(about, "the storm: %v", err)
	}
}

func (s *storm) note(about *subject, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	about.note(format, args...)
}

// begin begins a migration. An agent may refuse it, or be away.
func (s *storm) begin(ctx context.Context, one *running) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	request := &api.MigrateRequest{
		Container: one.subject.reference(), Node: one.to, Mode: string(one.mode), Wait: true,
	}
	if one.mode == migration.Hybrid { // nothing fits, so memory follows
		request.DowntimeTargetSeconds, request.MaxRounds = 0.001, 2
	}
	request.Spill = one.spill && (one.mode == migration.Hybrid || one.mode == migration.PostCopy)
	of, err := agentOf(one.from)
	if err == nil {
		var reply *api.MigrateReply
		if reply, err = of.Migrate(ctx, request, grpc.WaitForReady(true)); err == nil {
			one.id = reply.Migration
		}
	}
	if one.id != "" {
		s.mu.Lock()
		s.tally.migrations++
		s.underWay = append(s.underWay, one)
		s.mu.Unlock()
	}
	s.note(one.subject, "round %d: %s to %s, %s: %s %v", s.number, one.from, one.to, one.mode, one.id, err)
}

// await waits for the end of a migration at its source, as long as the round lasts, and returns the result;
// empty: unknown.
func (s *storm) await(ctx context.Context, one *running) migration.Result {
	for one.id != "" && ctx.Err() == nil {
		r, err := watch(ctx, one.from, one.id)
		if err == nil {
			s.mu.Lock()
			s.tally.ended(one.subject, r.Result)
			s.mu.Unlock()
			return r.Result
		}
		if status.Code(err) == codes.NotFound {
			return ""
		}
		wait(ctx, 100*time.Millisecond)
	}
	return ""
}

// heal removes all obstacles.
func (s *storm) heal() error {
	for i, a := range world.nodes {
		for _, b := range world.nodes[i+1:] {
			if err := world.lab.LinkUp(a, b); err != nil {
				return err
			}
		}
		if err := clearFaults(a); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.revival = 0
	s.mu.Unlock()
	for _, k := range s.keepers {
		k.revive(context.Background())
	}
	s.monitor.heals(true)
	return nil
}

// judge waits until the nodes are idle after a round, and checks the containers.
func (s *storm) judge(ctx context.Context) error {
	rest := s.rest(ctx)
	var problems []error
	double := s.monitor.doubles()
	for _, one := range s.subjects {
		if what := double[one.name]; what != "" {
			problems = append(problems, fmt.Errorf("%w: %s; %s", errTwice, what, one.describe()))
		}
		if err := s.alive(one); err != nil {
			problems = append(problems, fmt.Errorf("%w; %s", err, one.describe()))
		}
	}
	if rest != nil && len(problems) == 0 {
		s.tally.lost++ // it is unusable
	}
	return errors.Join(append(problems, rest)...)
}

// alive waits until a container makes progress.
func (s *storm) alive(one *subject) error {
	var wrong error
	err := within(patience, func() error {
		more, err := one.goesOn()
		if err != nil {
			wrong = err
			return nil
		}
		if !more {
			return errors.New("it does nothing")
		}
		return nil
	})
	switch {
	case errors.Is(wrong, errTwice):
		s.tally.double++
	case wrong != nil || err != nil:
		s.tally.lost++
	}
	return errors.Join(wrong, err)
}

// rest waits until no migration is under way on any node, and each container is on exactly one node,
// running.
func (s *storm) rest(ctx context.Context) error {
	err := within(patience, func() error { return s.rests(ctx) })
	if err != nil {
		for _, one := range s.subjects {
			err = fmt.Errorf("%w; %s", err, one.describe())
		}
		return fmt.Errorf("the nodes do not come to rest: %w", err)
	}
	return nil
}

func (s *storm) rests(ctx context.Context) error {
	where := map[string][]int{}
	for i, node := range world.nodes {
		if err := s.keepers[node].failure(); err != nil {
			return err
		}
		list, err := containers(ctx, node)
		if err != nil {
			return err
		}
		for _, c := range list {
			if c.State != engine.Running {
				return fmt.Errorf("on %s %s is %s", node, c.Definition.Name, c.State)
			}
			where[c.Definition.Name] = append(where[c.Definition.Name], i)
		}
	}
	for _, one := range s.subjects {
		if len(where[one.name]) != 1 {
			return fmt.Errorf("%s is on nodes %v", one.name, where[one.name])
		}
		one.at = where[one.name][0]
	}
	return errors.Join(s.ended(ctx), s.meet(ctx))
}

// ended checks that all migrations have ended on all nodes.
func (s *storm) ended(ctx context.Context) error {
	for _, node := range world.nodes {
		all, err := reports(ctx, node)
		if err != nil {
			return err
		}
		for id, r := range all {
			if open(r) {
				return fmt.Errorf("on %s migration %s is %s", node, id, r.Result)
			}
		}
	}
	return nil
}

// meet checks that all nodes reach each other.
func (s *storm) meet(ctx context.Context) error {
	for _, node := range world.nodes {
		of, err := agentOf(node)
		if err != nil {
			return err
		}
		reply, err := of.Nodes(ctx, &api.NodesRequest{})
		if err != nil {
			return err
		}
		for _, known := range reply.Nodes {
			if known.Name != node && !known.Reachable {
				return fmt.Errorf("%s does not reach %s", node, known.Name)
			}
		}
	}
	return nil
}

// finish checks all data of the programs.
func (s *storm) finish(t *testing.T) {
	t.Helper()
	for _, one := range s.subjects {
		if err := one.finish(); err != nil {
			s.tally.lost++
			t.Errorf("%v; %s", err, one.describe())
		}
	}
}

func (s *storm) removeAll(t *testing.T) {
	t.Helper()
	for _, one := range s.subjects {
		if err := one.remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// set makes a step wait for a fault, or sets the agent's own fault.
func (s *storm) set(one *running, f fault) error {
	kind := byStep[f.what]
	if kind == "" {
		kind = agent.FaultPause
	}
	directory, err := runDir(one.node(migration.Side(f.point.Side)))
	if err != nil {
		return err
	}
	return f.point.Set(directory, kind)
}

// crashed lists the agents that have crashed; a panic in a step is no crash.
func crashed(log string) (found []string) {
	for line := range strings.Lines(log) {
		if strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:") {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return slices.Compact(found)
}
