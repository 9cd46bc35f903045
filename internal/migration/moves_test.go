package migration

import "fmt"

// move is one transition.
type move struct {
	kind  string
	side  int
	fault bool
	crash int // the agent crashes after that many actions; -1: it does not
}

func (v move) String() string {
	text := fmt.Sprintf("%s: %s", side(v.side), v.kind)
	if v.crash >= 0 {
		text += fmt.Sprintf(", and crashes after %d actions", v.crash)
	}
	return text
}

// cost returns the number of faults in a move.
func (v move) cost() int {
	cost := 0
	if v.fault {
		cost++
	}
	if v.crash >= 0 {
		cost++
	}
	return cost
}

// mutation changes a machine's actions, to show that the checker notices.
type mutation func(s *system, i int, actions []Action) []Action

func (f mutation) apply(s *system, i int, actions []Action) []Action {
	if f == nil {
		return actions
	}
	return f(s, i, actions)
}

// moves lists the possible next moves, in the order of a fair schedule: the first one happens without
// further faults.
func (s *system) moves() []move {
	var out []move
	add := func(kind string, i int) { out = append(out, move{kind: kind, side: i, crash: -1}) }
	for i := range s.agents {
		if s.agents[i].m == nil {
			add("restart", i)
		} else if s.agents[i].lost {
			add("peer lost", i)
		}
	}
	if !s.link {
		add("link up", src)
	}
	if s.agents[src].m != nil && s.agents[src].m.rec.State == Waiting && !s.agents[src].finished {
		add("start", src)
	}
	for i := range s.agents {
		if len(s.session[i]) > 0 && s.agents[i].m != nil {
			add("message", i)
		}
		if len(s.calls[i]) > 0 {
			add("call", i)
		}
	}
	if s.copies[dst] == copyReleased {
		add("resume", dst)
	}
	for i := range s.agents {
		s.stepMoves(i, add)
	}
	if s.needsOperator() {
		add("alarm heeded", src) // an operator sees the alarm
	}
	add("tick of both", src)
	for i := range s.agents {
		if s.agents[i].m != nil {
			add("tick", i)
		}
	}
	if s.faults > 0 {
		s.faultMoves(&out)
	}
	return out
}

// stepMoves are the ways in which an agent's current task continues.
func (s *system) stepMoves(i int, add func(string, int)) {
	a := &s.agents[i]
	mayFail := a.cut || a.denied
	switch a.doing {
	case "":
		return
	case StepSend:
		switch {
		case s.marker == markerKept: // the interrupt may come too late
			add("emit", i)
		case a.granted && !a.cut:
			add("done", i)
		case !a.raised:
			add("raise", i)
		}
		mayFail = mayFail || !s.joined
	case StepReceive:
		if s.marker == markerSent {
			add("done", i)
		}
		mayFail = mayFail || !s.joined
	case StepPush: // over connections of its own
		there := s.agents[dst].m != nil && !s.away && !s.forgot() && s.copies[dst] == copyRuns
		if s.link && there || a.m.rec.Resolved {
			add("done", i)
		} else {
			mayFail = true
		}
	case StepDestroy:
		if may, _ := s.mayGo(); may {
			add("done", i)
		} else {
			mayFail = true
		}
	case StepRestore, StepStart:
		if s.copies[dst] == copyNone { // an engine removed the copy
			mayFail = true
		} else if !a.raised {
			add("raise", i)
		} else if s.copies[dst] == copyRuns {
			add("done", i)
		}
	default:
		if !a.cut {
			add("done", i)
		}
	}
	if mayFail {
		add("fail", i)
	}
	if a.cut && a.doing != StepRestore && a.doing != StepStart && a.doing != StepReceive &&
		a.doing != StepSend && a.doing != StepPush &&
		a.doing != StepDestroy {
		add("done", i) // the task was faster than the interrupt
	}
}

func (s *system) faultMoves(out *[]move) {
	add := func(kind string, i int) { *out = append(*out, move{kind: kind, side: i, fault: true, crash: -1}) }
	if s.link {
		add("link down", src)
	}
	for i := range s.agents {
		if s.agents[i].m == nil {
			continue
		}
		add("crash", i)
		add("cancel", i)
		if d := s.agents[i].doing; d != "" {
			add("fail", i)
			if d == StepDestroy {
				if may, _ := s.mayGo(); !may {
					continue
				}
			}
			if d != StepSend && d != StepReceive && d != StepRestore && d != StepStart {
				add("fail after effect", i)
			}
		}
	}
	s.resolveMoves(add)
	s.trustMoves(add)
}

// resolveMoves are the decisions of an operator who has looked.
func (s *system) resolveMoves(add func(string, int)) {
	if m := s.agents[src].m; m != nil && m.rec.State == InDoubt {
		if s.copies[dst] == copyRuns {
			add("resolve target", src)
		} else if d := s.agents[dst].disk; s.loss == "" && (d == nil || d.Decision == NeverRan) {
			add("resolve source", src)
		}
	}
	if m := s.agents[src].m; m != nil && m.cut && s.copies[dst] == copyRuns {
		add("resolve target", src)
	}
	if m := s.agents[dst].m; m != nil && m.rec.State == Running {
		add("resolve target", dst)
	}
}

// apply makes a move and returns the number of its actions.
func (s *system) apply(v move) int {
	s.faults -= v.cost()
	i, a := v.side, &s.agents[v.side]
	switch v.kind {
	case "restart":
		return s.restart(i, v.crash)
	case "peer lost":
		a.lost = false
		return s.feed(i, PeerLost{}, v.crash)
	case "link up":
		s.link = true
	case "link down":
		s.link = false
		s.calls = [2][]call{}
		s.part()
	case "start":
		return s.feed(i, Start{}, v.crash)
	case "message":
		kind := s.session[i][0]
		s.session[i] = s.session[i][1:]
		return s.feed(i, Received{Message{Kind: kind, Incarnation: said(i, s.state)}}, v.crash)
	case "call":
		return s.takeCall(i, v.crash)
	case "resume":
		s.copies[dst] = copyRuns
	case "raise":
		return s.raise(i, v.crash)
	case "emit":
		s.emit()
	case "done", "fail", "fail after effect":
		return s.end(i, v)
	case "tick of both":
		s.tickBoth()
	case "tick":
		return s.feed(i, Tick{}, v.crash)
	case "crash":
		s.crash(i)
	case "cancel":
		return s.feed(i, Cancel{}, v.crash)
	case "resolve source":
		return s.resolve(i, Source, true, v.crash)
	case "resolve target":
		return s.resolve(i, Target, true, v.crash)
	default:
		return s.applyTrust(v)
	}
	return 0
}

// tickBoth starves neither side.
func (s *system) tickBoth() {
	for i := range s.agents {
		if s.agents[i].m != nil {
			s.feed(i, Tick{}, -1)
		}
	}
}

func (s *system) takeCall(i, limit int) int {
	c := s.calls[i][0]
	s.calls[i] = s.calls[i][1:]
	switch {
	case s.agents[i].m == nil:
		return 0
	case c.ask:
		return s.execute(i, s.answer(c.with), limit)
	}
	return s.feed(i, Received{Message{Kind: c.kind, Incarnation: said(i, c.by)}}, limit)
}

func (s *system) raise(i, limit int) int {
	s.agents[i].raised = true
	if i == src {
		return s.feed(i, FinalMarker{}, limit)
	}
	s.copies[dst] = copyAtGate
	return s.feed(i, Ready{}, limit)
}

// end ends an agent's current task.
func (s *system) end(i int, v move) int {
	step := s.agents[i].doing
	s.agents[i].doing = ""
	unresumed := !s.away && (s.copies[dst] == copyAtGate || s.copies[dst] == copyReleased)
	if step == StepCheck && v.kind == "done" {
		if unresumed {
			s.copies[dst] = copyPrepared
		}
		outcome := NeverRan
		if s.presence() == RunsThere {
			outcome = Ran
		}
		return s.feed(i, Arrived{Outcome: outcome}, v.crash)
	}
	if step == StepReceive && v.kind == "done" {
		s.marker = markerHere
	}
	if (step == StepRestore || step == StepStart) && v.kind == "fail" && unresumed {
		s.copies[dst] = copyPrepared
	}
	var problems []Problem
	if _, lossy := s.mayGo(); step == StepDestroy && v.kind == "fail" && lossy {
		problems = []Problem{{What: "files at b"}}
	}
	if v.kind != "fail" {
		s.effect(step)
	}
	if v.kind == "done" {
		return s.feed(i, StepDone{Step: step}, v.crash)
	}
	unsent := step == StepSend && s.keepMarker()
	return s.feed(i, StepFailed{Step: step, Problems: problems, Unsent: unsent}, v.crash)
}
