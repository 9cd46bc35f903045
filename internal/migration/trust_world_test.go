package migration

import "slices"

// This file adds the events from outside of the two machines: a second agent, an engine that starts or
// removes a departing or arriving container, a kernel that is out of memory, an operator at either side, a
// source that loses its journal, and a target whose state was lost, put back or copied. The world has the
// protection against each of them unless a test removes it.

// The target's incarnations: the one that took the reservation, and any other.
const (
	reservedBy   byte = 1
	anotherState byte = 2
)

// said returns the incarnation in a message to side i.
func said(i int, state byte) string {
	if i == dst {
		return ""
	}
	return string('0' + rune(state))
}

// presence is the target's engine's answer about the container.
func (s *system) presence() Presence {
	switch {
	case s.away || s.copies[dst] == copyNone:
		return Absent
	case s.copies[dst] == copyRuns:
		return RunsThere
	}
	return Standing
}

// answer is the target's agent's answer to a question for the outcome.
func (s *system) answer(abort bool) []Action {
	a := &s.agents[dst]
	if a.unread {
		return []Action{Answer{Message{Kind: KindUnknown}}}
	}
	known, actions := !s.forgot(), []Action{Answer{Message{Kind: KindNeverRan}}}
	if known {
		actions, _ = a.m.Step(Asked{Abort: abort})
	}
	for n, action := range actions {
		answer, is := action.(Answer)
		if !is || answer.Message.Kind != KindNeverRan || known && a.m.rec.State != Done ||
			s.without == "evidence" {
			continue
		}
		evidence := Evidence{
			Reserved: said(src, reservedBy), Incarnation: said(src, s.state), Journaled: known,
			Presence: s.presence(),
		}
		if _, may := MayDeny(evidence); !may {
			actions[n] = Answer{Message{Kind: KindUnknown}}
		}
	}
	return actions
}

// forgot reports whether the target's agent does not know this migration, or has no valid record of it.
func (s *system) forgot() bool {
	a := &s.agents[dst]
	return s.loss != "" && (a.disk == nil || a.unread)
}

// losses are the ways in which the target's state can be lost while its agent does not run. A loss takes
// longer than the life of a restore that waits at the gate.
var losses = map[string]func(*system){
	"journal lost":  func(s *system) { s.agents[dst].disk = nil },
	"state is lost": func(s *system) { s.agents[dst].disk, s.state = nil, anotherState },
	"state put back": func(s *system) { // to a state from soon after the migration's beginning
		older := mustNew(Target, s.mode).rec
		older.State, older.Begun = Forward, []StepName{StepReserve}
		s.agents[dst].disk = &older
	},
	"state was copied": func(s *system) { s.state, s.away = anotherState, true },
	// messages that the target sent are no longer under way: a container that is known to run there dies
	// with the machine
	"machine was replaced": func(s *system) {
		s.state, s.away, s.copies[dst], s.calls[src] = anotherState, true, copyNone, nil
	},
}

// trustMoves are the possible events from outside.
func (s *system) trustMoves(addAny func(string, int)) {
	add := func(kind string, i int) {
		if len(s.only) == 0 || slices.Contains(s.only, kind) {
			addAny(kind, i)
		}
	}
	doubtful := false
	if m := s.agents[src].m; m != nil {
		doubtful = m.rec.State == InDoubt || m.rec.Final &&
			(m.rec.State == Forward || m.rec.State == Committed)
	}
	quiet := s.copies[dst] == copyNone || s.copies[dst] == copyPrepared || s.copies[dst] == copyRuns
	if doubtful && quiet && s.loss == "" && s.copies[src] == copyFrozen {
		for _, kind := range []string{"journal lost", "state is lost", "state put back", "state was copied",
			"machine was replaced"} {
			add(kind, dst)
		}
	}
	for i := range s.agents {
		if m := s.agents[i].m; m != nil && s.agents[i].disk != nil {
			add("second agent at the "+string(side(i)), i)
		}
	}
	if s.copies[src] == copyFrozen && s.agents[src].disk != nil {
		add("engine starts it", src)
		add("engine removes it", src)
		add("out of memory", src)
		add("source loses its journal", src)
	}
	if !s.away && (s.copies[dst] == copyPrepared || s.copies[dst] == copyAtGate ||
		s.copies[dst] == copyReleased) {
		add("engine starts what arrives", dst)
		add("engine removes what arrives", dst)
	}
	if m := s.agents[src].m; m != nil && m.rec.Final && s.copies[src] == copyFrozen && !s.killed {
		add("engine thaws it", src)
		add("engine kills it", src)
	}
	if m := s.agents[src].m; m != nil && (m.rec.State == InDoubt || m.cut || m.withheld) {
		add("an operator wants it at the source", src)
		add("an operator wants it at the target", src)
	}
	if m := s.agents[dst].m; m != nil && m.rec.State == Running && !s.forgot() {
		add("an operator wants it at the target", dst)
	}
}

func (s *system) applyTrust(v move) int {
	i := v.side
	switch v.kind {
	case "source loses its journal":
		s.crash(src)
		s.agents[src].disk = nil
	case "alarm heeded":
		at := Source
		if s.copies[dst] == copyRuns {
			at = Target
		}
		return s.resolve(i, at, true, v.crash)
	case "an operator wants it at the source":
		return s.resolve(i, Source, false, v.crash)
	case "an operator wants it at the target":
		return s.resolve(i, Target, false, v.crash)
	case "second agent at the source", "second agent at the target":
		if s.without == "lock" {
			s.recoverBeside(i)
		}
	case "engine starts what arrives":
		if s.without == "shim" {
			s.copies[dst] = copyRuns
		}
	case "engine removes what arrives": // it may: the source has the container
		s.copies[dst] = copyNone
	case "engine starts it", "engine thaws it", "engine removes it", "engine kills it", "out of memory":
		s.actOnLeaving(v.kind)
	default:
		s.crash(i)
		s.loss = v.kind
		losses[v.kind](s)
	}
	return 0
}

// actOnLeaving acts like an engine, or the kernel, on the frozen copy at the source. It has an effect only
// if the protection against it is missing: everywhere, or while the source has remote pages of the
// container.
func (s *system) actOnLeaving(kind string) {
	protection := map[string]string{
		"engine starts it": "guard", "engine removes it": "guard", "engine thaws it": "hold",
		"engine kills it": "hold",
		"out of memory":   "protection from the kernel",
	}[kind]
	s.killed = s.killed || kind == "engine kills it"
	pushing := s.split && s.copies[dst] == copyRuns
	if s.without != protection && (s.without != protection+" in a post-copy push" || !pushing) {
		return
	}
	s.copies[src] = copyNone
	if kind == "engine starts it" || kind == "engine thaws it" {
		s.copies[src] = copyRuns
	}
}

// rebuilt is the journal that a source rebuilds from its engine's note of the departure; nil: there is no
// note.
func (s *system) rebuilt() *Record {
	if s.copies[src] != copyFrozen || s.without == "note of the departure" {
		return nil
	}
	rec, err := Rebuilt(testSpec(Source, s.mode), "the journal was lost")
	if err != nil {
		s.fail("rebuilt: %v", err)
		return nil
	}
	rec.Incarnation = said(src, reservedBy)
	if s.without == "doubt of what was rebuilt" {
		rec.State, rec.Decision = Undoing, NeverRan
	}
	return &rec
}

// needsOperator reports whether only an operator who looks can know where the container runs. Nobody
// decides while the target takes it back.
func (s *system) needsOperator() bool {
	m, there := s.agents[src].m, s.agents[dst].m
	if m == nil || there != nil && there.rec.Overruled && !s.away && s.copies[dst] == copyRuns {
		return false
	}
	return m.rec.State == InDoubt && m.rec.Alarm != "" || m.withheld ||
		m.cut && (s.loss != "" || s.copies[dst] != copyRuns)
}

// mayGo is the target's answer to a source that is about to destroy its copy. It is lossy if the target
// lacks the data that it received, or cannot know whether it has the data: then only an operator can
// decide.
func (s *system) mayGo() (may, lossy bool) {
	m := s.agents[src].m
	switch {
	case m == nil:
		return false, false
	case m.rec.Resolved:
		return true, false
	case !s.link || s.agents[dst].m == nil:
		return false, false
	case s.forgot():
		return false, s.without != "doubt of who has forgotten"
	case m.rec.Incarnation != "" && m.rec.Incarnation != said(src, s.state):
		return false, true
	}
	there := s.agents[dst].m.rec
	return there.Decision == Ran && !there.Overruled, there.Decision == NeverRan && there.Overruled
}

// mayEnd reports whether the source may ask the target to end its copy, by its agent or an operator: if the
// source's own copy was killed, only an operator who insists may.
func (s *system) mayEnd(force bool) bool {
	if !s.killed || force {
		return true
	}
	s.blind = s.without == "look at what was killed"
	return s.blind
}

// thawed is the state of a frozen copy after a thaw.
func (s *system) thawed() copyState {
	switch {
	case !s.killed:
		return copyRuns
	case s.blind:
		return copyNone
	}
	return copyEnded
}

// recoverBeside simulates a second agent that resumes from the journal of an agent that still runs: it
// undoes, to the end.
func (s *system) recoverBeside(i int) {
	m, actions, err := Resume(*s.agents[i].disk)
	for err == nil && len(actions) > 0 {
		var next []Action
		for _, action := range actions {
			switch x := action.(type) {
			case Journal:
				rec := x.Record
				s.agents[i].disk = &rec
			case Undo:
				s.effect(x.Step)
				next, err = m.Step(StepDone{Step: x.Step})
			}
		}
		actions = next
	}
}

// resolve carries out an operator's decision at a node; with force, the operator has looked. The other node
// is asked first.
func (s *system) resolve(i int, at Side, force bool, limit int) int {
	m := s.agents[i].m
	if m.Resolvable(Resolve{RunsAt: at}) != nil {
		return 0
	}
	if i == src && at == Source && !s.mayEnd(force) {
		return 0
	}
	heard, word := s.word(i, at)
	q := Question{Here: side(i), State: m.rec.State, RunsAt: at, Word: word, Late: force, Force: force}
	if s.without == "fence" {
		return s.feed(i, Resolve{RunsAt: at}, limit)
	}
	switch q.Rule() {
	case RuleCarryOut:
		return s.feed(i, Resolve{RunsAt: at}, limit)
	case RuleHeed:
		return s.feed(i, Received{heard}, limit)
	case RuleAskAgain:
		if at == Source && m.rec.State == InDoubt {
			return s.feed(i, Cancel{}, limit)
		}
	}
	return 0
}

// word returns the other node's answer to an operator's decision at this node, and makes it act
// accordingly.
func (s *system) word(i int, at Side) (Message, Word) {
	if !s.link || s.agents[1-i].m == nil {
		return Message{}, WordNone
	}
	if i == dst {
		return Message{}, s.agents[src].m.rec.SourceWord()
	}
	m := s.agents[src].m
	if at == Source && m.rec.State == Committed {
		s.feed(dst, Received{Message{Kind: KindOverruled}}, -1)
	}
	var heard Message
	var rest []Action
	for _, action := range s.answer(at == Source && m.rec.State == InDoubt) {
		if answer, is := action.(Answer); is {
			heard = answer.Message
			heard.Incarnation = said(src, s.state)
			continue
		}
		rest = append(rest, action)
	}
	s.execute(dst, rest, -1)
	return heard, m.WordOf(heard)
}

// endedAnyhow checks what must hold at the end if the target's state was tampered with: the target may keep
// leftovers that it does not know of, but one copy runs, and the source knows where.
func (s *system) endedAnyhow() string {
	rec, here := s.agents[src].m.rec, s.stayed()
	switch {
	case here == (s.copies[dst] == copyRuns):
		return "no copy runs"
	case rec.State != Done || (rec.Result == Moved) == here:
		return "the source ends " + string(rec.State) + ", " + string(rec.Result)
	case s.held || s.warm || s.tracked || s.slowed:
		return "something is left over at the source"
	}
	return ""
}
