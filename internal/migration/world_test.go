package migration

import (
	"fmt"
	"slices"
)

// This file simulates two agents, the link between them and the container: the world in which model_test.go
// tries all orders of events. A transition is atomic: an event, and all its actions. A crash can end it
// after any action.

// copyState is the state of the container's copy on one node.
type copyState uint8

const (
	copyNone     copyState = iota
	copyPrepared           // target: an arrival waits for its state
	copyAtGate             // target: a restore waits before the resume; in mode restart it runs on probation
	// target: the copy was released, and may run at any instant, with or without an agent
	copyReleased
	copyFrozen // source
	copyEnded  // source: the copy was killed, and stayed
	copyRuns
)

const (
	markerNone uint8 = iota
	markerKept       // the marker may leave, and has not
	markerSent
	markerHere
	markerLost
)

// agentState is one agent: its machine and its journal.
type agentState struct {
	m        *Machine // nil: the agent is down
	disk     *Record
	doing    StepName
	cut      bool // doing was interrupted
	raised   bool // doing has asked for permission
	granted  bool
	denied   bool
	lost     bool // PeerLost is to be delivered
	finished bool
	unread   bool // its journal is an older one, without this migration
}

// call is a message outside of the session.
type call struct {
	kind MessageKind
	ask  bool
	with bool // abort
	by   byte // incarnation of the target that sent it
}

type system struct {
	mode    Mode
	agents  [2]agentState
	copies  [2]copyState
	session [2][]MessageKind // to the agent with this index
	calls   [2][]call
	held    bool
	warm    bool
	tracked bool // memory tracking at the source; the kernel ends it when the agent is gone
	slowed  bool // the container at the source, until it is no longer throttled
	split   bool // the source has remote pages of the container
	room    bool // reserved at the target
	link    bool
	joined  bool // the session stands
	marker  uint8
	faults  int // still allowed
	bad     string
	mutant  mutation

	state   byte     // the target's incarnation
	loss    string   // what happened to the target's state; empty: nothing
	killed  bool     // an engine has killed the frozen copy, which ends when it is thawed
	blind   bool     // and the source asked the target to end its copy without knowing that
	away    bool     // the target's copy is on a machine that no longer answers: another machine has its name
	without string   // the protection that this world lacks, see trust_test.go
	only    []string // the possible events from outside; empty: all
}

const (
	src = 0
	dst = 1
)

func testSpec(side Side, mode Mode) Spec {
	const id = "0123456789abcdef"
	return Spec{ID: id, Side: side, Container: id + id + id + id, Name: "redis", Source: "a", Target: "b",
		Mode: mode}
}

func mustNew(side Side, mode Mode) *Machine {
	m, err := New(testSpec(side, mode))
	if err != nil {
		panic(err)
	}
	return m
}

func newSystem(mode Mode, faults int, mutant mutation) *system {
	s := &system{mode: mode, link: true, joined: true, faults: faults, mutant: mutant, state: reservedBy}
	s.agents[src].m = mustNew(Source, mode)
	s.agents[dst].m = mustNew(Target, mode)
	s.copies[src] = copyRuns
	return s
}

func (m *Machine) cloneForTest() *Machine {
	c := *m
	c.rec = m.rec.clone()
	c.out = nil
	return &c
}

func (s *system) clone() *system {
	c := *s
	for i := range c.agents {
		if c.agents[i].m != nil {
			c.agents[i].m = c.agents[i].m.cloneForTest()
		}
		c.session[i] = slices.Clone(s.session[i])
		c.calls[i] = slices.Clone(s.calls[i])
	}
	return &c
}

func (s *system) fail(format string, args ...any) {
	if s.bad == "" {
		s.bad = fmt.Sprintf(format, args...)
	}
}

// feed gives an event to a machine and executes its actions, but only the first limit actions if the agent
// crashes then (limit >= 0). It returns the number of actions.
func (s *system) feed(i int, event Event, limit int) int {
	if i == dst && s.forgot() {
		return 0
	}
	actions, _ := s.agents[i].m.Step(event)
	return s.execute(i, actions, limit)
}

func (s *system) execute(i int, actions []Action, limit int) int {
	actions = s.mutant.apply(s, i, actions)
	for n, action := range actions {
		if n == limit {
			break
		}
		s.act(i, action)
	}
	if a := &s.agents[i]; a.m != nil {
		a.m.rec.Notes = nil // they make no difference except many states
	}
	if limit >= 0 {
		s.crash(i)
	}
	return len(actions)
}

func (s *system) act(i int, action Action) {
	a := &s.agents[i]
	switch x := action.(type) {
	case Journal:
		rec := x.Record
		a.disk = &rec
	case Do:
		s.start(i, x.Step)
	case Undo:
		s.start(i, x.Step)
	case CheckArrived:
		s.start(i, StepCheck)
	case Interrupt:
		if a.doing != x.Step {
			s.fail("%s: interrupt of %s while doing %q", side(i), x.Step, a.doing)
		}
		a.cut = true
	case EmitFinal:
		a.granted = true
		s.marker = markerKept
	case Proceed:
		a.granted = true
		s.copies[dst] = copyReleased
	case Deny:
		a.denied = true
	case Send:
		s.send(1-i, call{kind: x.Message.Kind, by: s.state}, s.joined)
	case AskOutcome:
		s.send(dst, call{ask: true, with: x.Abort && s.mayEnd(false)}, false)
	case Answer:
		s.send(src, call{kind: x.Message.Kind, by: s.state}, false)
	case Finish:
		a.finished = true
	}
}

// start begins a step. The agent does one thing at a time for a machine.
func (s *system) start(i int, step StepName) {
	a := &s.agents[i]
	if a.doing != "" {
		s.fail("%s: told to do %s while doing %s", side(i), step, a.doing)
	}
	a.doing, a.cut, a.raised, a.granted, a.denied = step, false, false, false, false
	if step == StepStart && s.copies[dst] != copyNone { // a copy that was removed does not start
		s.copies[dst] = copyAtGate
	}
}

func (s *system) send(to int, c call, session bool) {
	switch {
	case session && slices.Contains(s.session[to], c.kind): // repeated; more of them make no difference
	case session:
		s.session[to] = append(s.session[to], c.kind)
	case s.link && !c.kind.NeedsSession() && !slices.Contains(s.calls[to], c):
		s.calls[to] = append(s.calls[to], c)
	}
}

// effect applies a step's effect to the world. Undos tolerate that there is nothing to undo.
func (s *system) effect(step StepName) {
	if ofTarget := slices.Contains([]StepName{StepReserve, StepArrive, UndoArrive, UndoReserve, StepFinalise,
		UndoRestore}, step); s.away && ofTarget {
		return // another machine does it
	}
	switch step {
	case StepRounds:
		s.tracked, s.slowed = true, true
	case UndoRounds:
		if s.copies[src] == copyFrozen {
			s.fail("tracking ends in the freeze, where that takes long")
		}
		s.tracked, s.slowed = false, false
	case StepPrepare:
		s.warm = true
	case StepHold:
		s.held = true
	case StepFreeze:
		s.copies[src], s.slowed, s.split = copyFrozen, false, s.mode != Cold
	case StepStop:
		s.copies[src], s.slowed = copyFrozen, false
	case StepPush:
		s.split = false
	case StepForward:
		s.held = false
	case StepDestroy:
		if s.copies[src] == copyRuns {
			s.fail("destroy of a running container")
		}
		if s.split {
			s.fail("destroy of pages that the target has not")
		}
		s.copies[src] = copyNone
	case StepCleanup:
		s.warm, s.tracked, s.slowed = false, false, false
	case UndoPrepare:
		s.warm = false
	case UndoHold:
		s.held = false
	case UndoFreeze, UndoStop:
		s.split = false
		if s.copies[src] == copyFrozen {
			s.copies[src] = s.thawed()
		}
	case StepReserve:
		s.room = true
	case StepArrive:
		s.copies[dst] = copyPrepared
	case UndoArrive:
		if s.runsThere() {
			s.fail("discard of a running container")
		}
		s.copies[dst] = copyNone
	case UndoReserve, StepFinalise:
		s.room = false
	case UndoRestore:
		s.copies[dst] = copyNone
	}
}

// crash loses everything that an agent has not journaled. Processes live on.
func (s *system) crash(i int) {
	s.agents[i] = agentState{disk: s.agents[i].disk}
	if i == src {
		s.tracked = false
		s.keepMarker()
	}
	s.part()
}

// emit lets the final marker leave.
func (s *system) emit() {
	s.marker = markerLost
	if s.joined {
		s.marker = markerSent
	}
}

// keepMarker keeps the final marker at the source, unless it has left, and reports whether it did.
func (s *system) keepMarker() bool {
	kept := s.marker == markerKept
	if kept {
		s.marker = markerNone
	}
	return kept || s.without == "the truth about the final marker"
}

// part breaks the session. The final marker may be in a buffer of the target already.
func (s *system) part() {
	if !s.joined {
		return
	}
	s.joined = false
	for i := range s.agents {
		s.session[i] = nil
		s.agents[i].lost = s.agents[i].m != nil
	}
}

func (s *system) restart(i, limit int) int {
	a := &s.agents[i]
	if i == src && a.disk == nil {
		a.disk = s.rebuilt()
	}
	if a.disk == nil {
		a.m = mustNew([]Side{Source, Target}[i], s.mode)
		a.finished = i == src // its agent knows nothing of a migration that was not journaled
		return 0
	}
	if i == dst && s.without != "contradiction" && a.disk.DeniesRun() && s.presence() == RunsThere {
		a.m, a.unread = mustNew(Target, s.mode), true
		return 0
	}
	m, actions, err := Resume(*a.disk)
	if err != nil {
		s.fail("%s: %v", side(i), err)
		return 0
	}
	a.m = m
	return s.execute(i, actions, limit)
}

func side(i int) Side { return []Side{Source, Target}[i] }

// invariant checks what must hold at every instant.
func (s *system) invariant() string {
	if s.bad != "" {
		return s.bad
	}
	if s.copies[src] == copyRuns && s.runsThere() {
		return "two copies run"
	}
	if s.copies[src] == copyNone && s.copies[dst] == copyPrepared && s.loss != "" {
		return "no copy is left"
	}
	if s.copies[src] == copyNone && s.copies[dst] != copyRuns {
		return "no copy is left"
	}
	if s.copies[src] == copyNone && s.split {
		return "pages are lost"
	}
	if s.copies[src] == copyFrozen && s.agents[src].finished {
		return "the source has finished and left the container frozen"
	}
	return ""
}

// stayed reports whether the container is at the source, and nothing is wrong with it.
func (s *system) stayed() bool { return s.copies[src] == copyRuns || s.copies[src] == copyEnded }

// runsThere reports whether processes of the container run at the target. A container on probation runs,
// too.
func (s *system) runsThere() bool {
	onProbation := s.mode == Restart && (s.copies[dst] == copyAtGate || s.copies[dst] == copyReleased)
	return s.copies[dst] == copyRuns || onProbation
}

// stuck checks what must hold when nothing more happens because the link is down: the container runs,
// unless the source is in doubt.
func (s *system) stuck() string {
	if s.stayed() || s.runsThere() || s.agents[src].m.rec.State == InDoubt {
		return ""
	}
	return fmt.Sprintf("the link is down, and the container does not run although the source is %s",
		s.agents[src].m.rec.State)
}

// ended checks what must hold when nothing more happens and the link is up.
func (s *system) ended() string {
	if s.loss != "" {
		return s.endedAnyhow()
	}
	var runs []int
	for i, c := range s.copies {
		if c == copyRuns || c == copyEnded {
			runs = append(runs, i)
		} else if c != copyNone {
			return fmt.Sprintf("%s: a copy is left over", side(i))
		}
	}
	switch {
	case len(runs) != 1:
		return fmt.Sprintf("%d copies run", len(runs))
	case s.held || s.warm || s.room:
		return fmt.Sprintf("left over: hold %t, dump %t, reservation %t", s.held, s.warm, s.room)
	case s.tracked || s.slowed:
		return fmt.Sprintf("left over: tracking %t, throttle %t", s.tracked, s.slowed)
	}
	for i := range s.agents {
		rec := s.agents[i].m.rec
		moved := runs[0] == dst
		if rec.State != Done && rec.State != Waiting {
			return fmt.Sprintf("%s ends %s", side(i), rec.State)
		}
		if rec.State == Done && (rec.Result == Moved) != moved {
			return fmt.Sprintf("%s says %s, but the container runs at the %s", side(i), rec.Result,
				side(runs[0]))
		}
	}
	return ""
}

// key encodes a state so that different states have different keys.
func (s *system) key(b []byte) []byte {
	flags := func(bits ...bool) byte {
		var out byte
		for i, bit := range bits {
			if bit {
				out |= 1 << i
			}
		}
		return out
	}
	b = append(b, byte(s.faults), byte(s.copies[src]), byte(s.copies[dst]), s.marker, s.state,
		byte(len(s.loss)), flags(s.held, s.warm, s.room, s.link, s.joined, s.tracked, s.slowed, s.split),
		flags(s.away, s.agents[dst].unread, s.killed, s.blind))
	for i := range s.agents {
		a := &s.agents[i]
		b = append(b, flags(a.m == nil, a.disk == nil, a.cut, a.raised, a.granted, a.denied, a.lost,
			a.finished))
		b = append(append(b, a.doing...), 0)
		if a.m != nil {
			b = recordKey(b, &a.m.rec)
			b = append(append(b, a.m.busy...), byte(a.m.at), flags(
				a.m.stopping, a.m.unsure, a.m.undone, a.m.told, a.m.cut, a.m.heard != "", a.m.withheld))
		}
		if a.disk != nil {
			b = recordKey(b, a.disk)
		}
		for _, k := range s.session[i] {
			b = append(append(b, k...), 1)
		}
		for _, c := range s.calls[i] {
			b = append(append(b, c.kind...), 2, flags(c.ask, c.with), c.by)
		}
	}
	return b
}

func recordKey(b []byte, r *Record) []byte {
	b = append(append(b, r.State...), byte(len(r.Begun)))
	if n := len(r.Begun); n > 0 {
		b = append(b, r.Begun[n-1]...)
	}
	b = append(append(b, 3), r.Decision...)
	bits := byte(0)
	for i, bit := range []bool{r.Final, r.Abort, r.Overruled, r.Resolved, r.Error != "", r.Incarnation != "",
		r.Alarm != ""} {
		if bit {
			bits |= 1 << i
		}
	}
	return append(append(b, r.Result...), bits)
}
