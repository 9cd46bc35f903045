package migration

import (
	"errors"
	"strings"
	"testing"
)

// TestRule goes through every possible question, and examines the important rulings one by one.
func TestRule(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct {
		question Question
		want     Ruling
	}{
		"taken back, never ran there": {Question{Here: Source, State: InDoubt, RunsAt: Source,
			Word: WordNever}, RuleHeed},
		"taken back, but it runs there": {Question{Here: Source, State: InDoubt, RunsAt: Source,
			Word: WordElse}, RuleRefuse},
		"taken back, runs there, forced": {Question{Here: Source, State: InDoubt, RunsAt: Source,
			Word: WordElse, Force: true}, RuleRefuse},
		"taken back, restore under way": {Question{Here: Source, State: InDoubt, RunsAt: Source,
			Word: WordPending}, RuleAskAgain},
		"taken back, restore does not end": {Question{Here: Source, State: InDoubt, RunsAt: Source,
			Word: WordPending, Late: true}, RuleRefuse},
		"the same, forced": {Question{Here: Source, State: InDoubt, RunsAt: Source,
			Word: WordPending, Late: true, Force: true}, RuleCarryOut},
		"force does not hurry": {Question{Here: Source, State: InDoubt, RunsAt: Source,
			Word: WordPending, Force: true}, RuleAskAgain},
		"taken back, target unreachable": {Question{Here: Source, State: InDoubt, RunsAt: Source},
			RuleRefuse},
		"the same, force": {Question{Here: Source, State: InDoubt, RunsAt: Source,
			Force: true}, RuleCarryOut},
		"taken back, target lost its state": {Question{Here: Source, State: InDoubt, RunsAt: Source,
			Word: WordUnknown}, RuleRefuse},
		"lost its state, forced": {Question{Here: Source, State: InDoubt, RunsAt: Source,
			Word: WordUnknown, Force: true}, RuleCarryOut},
		"after the handover, copy ended": {Question{Here: Source, State: Committed, RunsAt: Source,
			Word: WordNever}, RuleCarryOut},
		"after the handover, copy runs": {Question{Here: Source, State: Committed, RunsAt: Source,
			Word: WordElse}, RuleAskAgain},
		"after the handover, it does not end": {Question{Here: Source, State: Committed, RunsAt: Source,
			Word: WordElse, Late: true, Force: true}, RuleRefuse},
		"given away, runs there": {Question{Here: Source, State: InDoubt, RunsAt: Target,
			Word: WordElse}, RuleHeed},
		"given away, never ran there": {Question{Here: Source, State: InDoubt, RunsAt: Target,
			Word: WordNever, Force: true}, RuleRefuse},
		"given away, restore under way": {Question{Here: Source, State: InDoubt, RunsAt: Target,
			Word: WordPending}, RuleAskAgain},
		"given away, target unreachable": {Question{Here: Source, State: InDoubt, RunsAt: Target},
			RuleRefuse},
		"given away in the post-copy push": {Question{Here: Source, State: Committed, RunsAt: Target,
			Word: WordElse}, RuleCarryOut},
		"at the target, source agrees": {Question{Here: Target, State: Running, RunsAt: Target,
			Word: WordGiven}, RuleCarryOut},
		"at the target, source took it back": {Question{Here: Target, State: Running, RunsAt: Target,
			Word: WordElse, Force: true}, RuleRefuse},
		"at the target, source in doubt": {Question{Here: Target, State: Running, RunsAt: Target,
			Word: WordPending}, RuleAskAgain},
		"at the target, source unreachable": {Question{Here: Target, State: Running, RunsAt: Target},
			RuleRefuse},
		"the same, with force": {Question{Here: Target, State: Running, RunsAt: Target, Force: true},
			RuleCarryOut},
	} {
		if got := one.question.Rule(); got != one.want {
			t.Errorf("%s: %s, want %s", name, got, one.want)
		}
	}
	for _, q := range questions() {
		got := q.Rule()
		copies := q.RunsAt == Source && q.Word == WordElse || q.Here == Source && q.RunsAt == Target &&
			q.Word == WordNever
		if copies && (got == RuleCarryOut || got == RuleHeed) {
			t.Errorf("%+v: %s, against the other node's word", q, got)
		}
		if silent := q.Word == WordNone || q.Word == WordUnknown || q.Word == WordPending; silent &&
			!q.Force && got != RuleRefuse && got != RuleAskAgain {
			t.Errorf("%+v: %s, without a word and without force", q, got)
		}
		if q.Late && got == RuleAskAgain {
			t.Errorf("%+v: is asked for ever", q)
		}
	}
}

// questions returns all possible questions.
func questions() (all []Question) {
	for _, q := range []Question{{Here: Source, State: InDoubt}, {Here: Source, State: Committed},
		{Here: Target, State: Running}} {
		for _, q.RunsAt = range []Side{Source, Target} {
			for _, q.Word = range []Word{WordNone, WordElse, WordNever, WordGiven, WordPending, WordUnknown} {
				for _, q.Late = range []bool{false, true} {
					for _, q.Force = range []bool{false, true} {
						all = append(all, q)
					}
				}
			}
		}
	}
	return all
}

// TestSourceWord checks what a source states to its target's operator.
func TestSourceWord(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct {
		record Record
		want   Word
	}{
		"under way":     {Record{State: Forward}, WordPending},
		"in doubt":      {Record{State: InDoubt}, WordPending},
		"draining":      {Record{State: Committed, Decision: Ran}, WordGiven},
		"moved":         {Record{State: Done, Decision: Ran, Result: Moved}, WordGiven},
		"rolled back":   {Record{State: Done, Decision: NeverRan, Result: RolledBack}, WordElse},
		"refused early": {Record{State: Done, Result: Refused}, WordElse},
		"undoing":       {Record{State: Undoing}, WordElse},
		"overruled":     {Record{State: Undoing, Overruled: true, Decision: NeverRan}, WordElse},
	} {
		if got := one.record.SourceWord(); got != one.want {
			t.Errorf("%s: %s, want %s", name, got, one.want)
		}
	}
}

// TestResolvable: a decision that the machine would refuse is refused before the other node is asked.
func TestResolvable(t *testing.T) {
	t.Parallel()
	m, err := New(Spec{ID: "0123456789abcdef", Side: Source, Container: strings.Repeat("c", containerDigits),
		Name: "web", Source: "a", Target: "b", Mode: Cold})
	if err != nil {
		t.Fatal(err)
	}
	for _, side := range []Side{Source, Target, "nowhere"} {
		asked := m.Resolvable(Resolve{RunsAt: side})
		_, taken := m.Step(Resolve{RunsAt: side})
		if !errors.Is(asked, ErrNotInDoubt) || !errors.Is(taken, ErrNotInDoubt) {
			t.Errorf("runs at %s: asked %v, taken %v", side, asked, taken)
		}
	}
}
