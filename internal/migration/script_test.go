package migration

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Scripts in testdata read as prose: each line is a command that says what happens, and the machine's
// actions stand below it, indented. "go test -update" writes the current actions; review them like code.
var update = flag.Bool("update", false, "write what the machines do into the scripts")

func TestScripts(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join("testdata", "*.txt"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			mode := Cold
			for _, other := range []Mode{PreCopy, PostCopy, Hybrid, Restart} {
				if strings.HasPrefix(filepath.Base(path), string(other)) {
					mode = other
				}
			}
			got := newScript(mode).run(string(data))
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			} else if got != string(data) {
				t.Errorf("%s: the machines do otherwise:\n%s", path, firstDifference(string(data), got))
			}
		})
	}
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range w {
		if i >= len(g) || w[i] != g[i] {
			return fmt.Sprintf("line %d\nwant %q\n got %q", i+1,
				w[i], strings.Join(g[i:min(i+1, len(g))], ""))
		}
	}
	return "more than expected"
}

// script runs two machines. It delivers nothing by itself.
type script struct {
	machines map[string]*Machine
	disks    map[string]*Record
	out      strings.Builder
}

func newScript(mode Mode) *script {
	return &script{
		machines: map[string]*Machine{"source": mustNew(Source, mode), "target": mustNew(Target, mode)},
		disks:    map[string]*Record{},
	}
}

// run executes a script and returns it with the machines' actions.
func (s *script) run(text string) string {
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "  ") {
			continue // the machines' actions when the script was written
		}
		s.out.WriteString(line + "\n")
		if line != "" && !strings.HasPrefix(line, "#") {
			s.command(line)
		}
	}
	return s.out.String()
}

// reach lets both machines go on without failures until the source begins a step. It prints nothing.
func (s *script) reach(step StepName) {
	type pending struct {
		who    string
		action Action
	}
	var queue []pending
	give := func(who string, event Event) {
		actions, err := s.machines[who].Step(event)
		if err != nil {
			fmt.Fprintf(&s.out, "  error: %v\n", err)
		}
		for _, action := range actions {
			queue = append(queue, pending{who, action})
		}
	}
	peer := map[string]string{"source": "target", "target": "source"}
	give("source", Start{})
	for len(queue) > 0 {
		next := queue[0]
		queue = queue[1:]
		switch a := next.action.(type) {
		case Journal:
			s.disks[next.who] = &a.Record
		case Send:
			give(peer[next.who], Received(a))
		case Do:
			if a.Step == step {
				return
			}
			if a.Step != StepReceive {
				give(next.who, StepDone{Step: a.Step})
			}
		}
	}
	fmt.Fprintf(&s.out, "  the source never begins %s\n", step)
}

// command is one line: SIDE WHAT [ARGUMENT][: TEXT].
func (s *script) command(line string) {
	head, text, _ := strings.Cut(line, ": ")
	words := append(strings.Fields(head), "", "")
	who, what, argument := words[0], words[1], words[2]
	switch {
	case who == "both" && what == "reach":
		s.reach(StepName(argument))
		return
	case what == "crashes":
		s.resume(who)
		return
	}
	event := scriptEvent(what, argument, text)
	if event == nil {
		fmt.Fprintf(&s.out, "  no such command: %s\n", line)
		return
	}
	actions, err := s.machines[who].Step(event)
	s.show(who, actions)
	if err != nil {
		fmt.Fprintf(&s.out, "  error: %v\n", err)
	}
}

func (s *script) resume(who string) {
	if s.disks[who] == nil {
		s.out.WriteString("  nothing was journaled\n")
		return
	}
	m, actions, err := Resume(*s.disks[who])
	if err != nil {
		fmt.Fprintf(&s.out, "  error: %v\n", err)
		return
	}
	s.machines[who] = m
	s.show(who, actions)
}

func scriptEvent(what, argument, text string) Event {
	switch what {
	case "starts":
		return Start{}
	case "did":
		return StepDone{Step: StepName(argument)}
	case "fails":
		return StepFailed{Step: StepName(argument), Error: text}
	case "keeps":
		return StepFailed{Step: StepName(argument), Error: text, Unsent: true}
	case "refuses":
		return StepFailed{Step: StepName(argument), Error: text, Problems: []Problem{{What: text}}}
	case "would":
		return map[string]Event{"finalise": FinalMarker{}, "resume": Ready{}}[argument]
	case "hears":
		return Received{Message{Kind: MessageKind(argument), Error: text}}
	case "hears-refusal":
		return Received{Message{Kind: KindNeverRan, Error: text, Problems: []Problem{{What: text}}}}
	case "is":
		return Asked{Abort: argument == "asked-to-abort"}
	case "loses":
		return PeerLost{Error: "broken pipe"}
	case "regains":
		return PeerBack{}
	case "cancels":
		return Cancel{Reason: "by a user"}
	case "times":
		return Timeout{Reason: "more than 1m"}
	case "ticks":
		return Tick{}
	case "checked":
		return Arrived{Outcome: Outcome(argument)}
	case "resolves":
		return Resolve{RunsAt: Side(argument)}
	}
	return nil
}

func (s *script) show(who string, actions []Action) {
	for _, action := range actions {
		if j, ok := action.(Journal); ok {
			s.disks[who] = &j.Record
		}
		fmt.Fprintf(&s.out, "  %s\n", showAction(action))
	}
	if len(actions) == 0 {
		fmt.Fprintf(&s.out, "  nothing\n")
	}
}

func showAction(action Action) string {
	switch a := action.(type) {
	case Journal:
		return showRecord(a.Record)
	case Do:
		return "do " + string(a.Step)
	case Undo:
		return "undo " + string(a.Step)
	case Interrupt:
		return "interrupt " + string(a.Step)
	case EmitFinal:
		return "emit the final marker"
	case Proceed:
		return "proceed"
	case Deny:
		return "deny " + string(a.Step)
	case Send:
		return "send " + showMessage(a.Message)
	case AskOutcome:
		if a.Abort {
			return "ask for the outcome, and to abort"
		}
		return "ask for the outcome"
	case Answer:
		return "answer " + showMessage(a.Message)
	case CheckArrived:
		return "check what arrived"
	case Finish:
		return strings.TrimSuffix(fmt.Sprintf("finish %s: %s", a.Result, a.Error), ": ")
	}
	return fmt.Sprintf("%T", action)
}

func showMessage(m Message) string {
	text := string(m.Kind)
	if m.Error != "" {
		text += " (" + m.Error + ")"
	}
	if len(m.Problems) > 0 {
		text += fmt.Sprintf(" with %d problems", len(m.Problems))
	}
	return text
}

func showRecord(r Record) string {
	text := fmt.Sprintf("journal %s", r.State)
	if r.Final && r.Spec.Side == Source {
		text += ", final"
	}
	if r.Decision != "" {
		text += ", " + string(r.Decision)
	}
	if n := len(r.Begun); n > 0 {
		text += fmt.Sprintf(", begun to %s", r.Begun[n-1])
	}
	return text
}
