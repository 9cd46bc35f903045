package migration

import (
	"cmp"
	"slices"
	"strings"
	"testing"
)

// tellMachine gives an event to a machine out of turn.
func tellMachine(s *system, i int, event Event) []Action {
	actions, _ := s.agents[i].m.Step(event)
	return actions
}

// Machines that break the commit rule. The checker must notice, or it proves nothing.
func TestCheckerNoticesBrokenMachines(t *testing.T) {
	for _, test := range []struct {
		name   string
		mode   Mode // empty: Cold
		faults int
		want   string
		broken mutation
	}{
		{"source thaws in doubt", "", 1, "two copies run", func(s *system, i int, actions []Action) []Action {
			for _, a := range actions {
				if _, ok := a.(AskOutcome); ok {
					return append(actions, tellMachine(s,
						i, Received{Message{Kind: KindNeverRan, Incarnation: said(src, reservedBy)}})...)
				}
			}
			return actions
		}},
		{"final marker is not journaled", "", 1, "two copies run",
			func(s *system, i int, actions []Action) []Action {
				return slices.DeleteFunc(actions, func(a Action) bool {
					j, ok := a.(Journal)
					return ok && i == src && j.Record.Final && j.Record.State == Forward
				})
			}},
		{"target says never-ran while it restores", "", 1, "two copies run",
			func(s *system, i int, actions []Action) []Action {
				for n, a := range actions {
					if answer, ok := a.(Answer); ok && answer.Message.Kind == KindPending {
						actions[n] = Answer{Message{Kind: KindNeverRan}}
					}
				}
				return actions
			}},
		{"source destroys before it hears", "", 1, "no copy is left",
			func(s *system, i int, actions []Action) []Action {
				for _, a := range actions {
					if _, ok := a.(EmitFinal); ok {
						s.agents[src].m.rec.Resolved = true // nor does it ask before it destroys
						return append(actions, tellMachine(s, i,
							Received{Message{Kind: KindRunning, Incarnation: said(src, reservedBy)}})...)
					}
				}
				return actions
			}},
		{"source never asks", "", 1, "no copy runs", func(s *system, i int, actions []Action) []Action {
			return slices.DeleteFunc(actions, func(a Action) bool { _, ok := a.(AskOutcome); return ok })
		}},
		{"target resumes whatever it was denied", "", 1, "two copies run",
			func(s *system, i int, actions []Action) []Action {
				for n, a := range actions {
					if deny, ok := a.(Deny); ok && deny.Step == StepRestore {
						actions[n] = Proceed{}
					}
				}
				return actions
			}},
		{"undo of the hold is forgotten", "", 1, "left over: hold true, dump false, reservation false",
			func(s *system, i int, actions []Action) []Action {
				for _, a := range actions {
					if undo, ok := a.(Undo); ok && undo.Step == UndoHold {
						return append(slices.DeleteFunc(actions, func(a Action) bool { return a == undo }),
							tellMachine(s, i, StepDone{Step: UndoHold})...)
					}
				}
				return actions
			}},
		{"a post-copy push that failed counts as done", PostCopy,
			1, "destroy of pages that the target has not",
			func(s *system, i int, actions []Action) []Action {
				if m := s.agents[i].m; i == src && m != nil && m.cut && m.busy == "" {
					m.at++
				}
				return actions
			}},
		{"source starts again in doubt", Restart, 1, "two copies run",
			func(s *system, i int, actions []Action) []Action {
				for _, a := range actions {
					if _, ok := a.(AskOutcome); ok {
						return append(actions, tellMachine(s, i,
							Received{Message{Kind: KindNeverRan, Incarnation: said(src, reservedBy)}})...)
					}
				}
				return actions
			}},
		{"target gives up before what runs on probation is stopped", Restart, 1, "two copies run",
			func(s *system, i int, actions []Action) []Action {
				for n, a := range actions {
					if cut, ok := a.(Interrupt); ok && cut.Step == StepStart {
						actions[n] = Send{Message{Kind: KindNeverRan}}
					}
				}
				return actions
			}},
		{"target says that it runs before it is healthy", Restart, 2, "no copy is left",
			func(s *system, i int, actions []Action) []Action {
				for _, a := range actions {
					if do, ok := a.(Do); ok && do.Step == StepStart {
						if m := s.agents[src].m; m != nil {
							m.rec.Resolved = true // a machine that no longer asks before it destroys
						}
						return append(actions, Send{Message{Kind: KindRunning}})
					}
				}
				return actions
			}},
	} {
		t.Run(test.name, func(t *testing.T) {
			found := explore(cmp.Or(test.mode, Cold), test.faults, test.broken)
			if found.violation != test.want {
				t.Fatalf("found %q in %d states, want %q", found.violation, found.states, test.want)
			}
			t.Logf("found after %d states:\n  %s", found.states, strings.Join(found.trace, "\n  "))
		})
	}
}
