package migration

import (
	"cmp"
	"slices"
	"strings"
	"testing"
)

// TestCheckerNoticesWhatIsMissing: some worlds lack a protection of the commit rule against outside events,
// and some machines believe any answer. The checker must notice each.
func TestCheckerNoticesWhatIsMissing(t *testing.T) {
	believes := func(s *system, i int, actions []Action) []Action {
		if m := s.agents[i].m; i == src && m != nil && m.rec.State != InDoubt {
			m.rec.Incarnation = ""
		}
		return actions
	}
	neverAsks := func(s *system, i int, actions []Action) []Action {
		if m := s.agents[i].m; i != src || m == nil || !m.rec.Rebuilt {
			return actions
		}
		return slices.DeleteFunc(actions, func(a Action) bool { _, ok := a.(AskOutcome); return ok })
	}
	for _, test := range []struct {
		name, without string
		mode          Mode // empty: Cold
		faults        int
		only          []string // the possible moves from outside; empty: all
		want          string
		broken        mutation
	}{
		{"C1: no lock", "lock", "", 1, []string{"second agent at the source"}, "two copies run", nil},
		{"C2: engines start what leaves", "guard", "", 1, []string{"engine starts it"}, "two copies run",
			nil},
		{"C2: engines remove what leaves", "guard", "", 1, []string{"engine removes it"}, "no copy is left",
			nil},
		{"C2: engines thaw what leaves", "hold", "", 1, []string{"engine thaws it"}, "two copies run", nil},
		{"C2: engines kill what leaves", "hold", "", 1, []string{"engine kills it"}, "no copy is left", nil},
		{
			"C2: an operator takes back what was killed", "look at what was killed", "", 2,
			[]string{"engine kills it", "an operator wants it at the source"}, "no copy is left", nil,
		},
		{"C3: a lost journal says never-ran", "evidence", "", 1, []string{"journal lost"}, "two copies run",
			nil},
		{"C3: a journal that was put back says never-ran", "contradiction", "", 1, []string{"state put back"},
			"two copies run", nil},
		{"C3: a copied state is believed", "evidence", "", 1, []string{"state was copied"}, "two copies run",
			believes},
		{"C3: the state of a machine that is gone is believed", "evidence", "", 1,
			[]string{"machine was replaced"}, "no copy is left", believes},
		{"H1: an operator is obeyed before the target is fenced", "fence", "", 2,
			[]string{"an operator wants it at the source"}, "two copies run", nil},
		{"H1: an operator is obeyed who is wrong", "fence", "", 2,
			[]string{"an operator wants it at the target"}, "no copy is left", nil},
		{
			"H2: a source without its journal leaves it frozen", "note of the departure", "", 1,
			[]string{"source loses its journal"},
			"the source has finished and left the container frozen", nil,
		},
		{"H2: a source without its journal does not ask", "", "", 1, []string{"source loses its journal"},
			"source: a copy is left over", neverAsks},
		{"H2: a source without its journal takes it back", "doubt of what was rebuilt", "",
			1, []string{"source loses its journal"}, "two copies run", nil},
		{
			"H2: a target without its journal lets the source ask for ever", "doubt of who has forgotten",
			"", 1, []string{"journal lost"},
			"it goes round and never ends", nil,
		},
		{"H3: engines remove what has pages", "guard in a post-copy push", PostCopy,
			1, []string{"engine removes it"}, "pages are lost", nil},
		{"H3: engines kill what has pages", "hold in a post-copy push", PostCopy,
			1, []string{"engine kills it"}, "pages are lost", nil},
		{"H3: a second agent in a post-copy push", "lock", PostCopy,
			1, []string{"second agent at the source"}, "two copies run", nil},
		{"H4: the kernel ends what is frozen", "protection from the kernel", "", 1, []string{"out of memory"},
			"no copy is left", nil},
		{"H4: the kernel ends what has pages", "protection from the kernel in a post-copy push", PostCopy,
			1, []string{"out of memory"}, "pages are lost", nil},
		{"a final marker that left counts as kept", "the truth about the final marker", "",
			1, []string{"emit"}, "two copies run", nil},
		{"an engine starts what arrives", "shim", "", 1, []string{"engine starts what arrives"},
			"two copies run", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newSystem(cmp.Or(test.mode, Cold), test.faults, test.broken)
			s.without, s.only = test.without, test.only
			found := exploreFrom(s)
			if found.violation != test.want {
				t.Fatalf("found %q in %d states, want %q:\n  %s", found.violation, found.states, test.want,
					strings.Join(found.trace, "\n  "))
			}
			from := slices.IndexFunc(found.trace, func(one string) bool {
				return slices.ContainsFunc(test.only,
					func(kind string) bool { return strings.Contains(one, kind) })
			})
			if from < 0 {
				t.Fatalf("not by what is missing:\n  %s", strings.Join(found.trace, "\n  "))
			}
			t.Logf("found after %d states:\n  %s", found.states, strings.Join(found.trace, "\n  "))
		})
	}
}
