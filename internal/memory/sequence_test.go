package memory

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// obey makes the script execute a command, and returns its answer. See testdata/script.
func (p *program) obey(command string) string {
	p.t.Helper()
	_, err := fmt.Fprintln(p.in, command)
	must(p.t, err)
	answer, err := p.out.ReadString('\n')
	must(p.t, err)
	return strings.TrimSpace(answer)
}

// play is a sequence of commands, some between rounds and some in the middle of one, whenever pages are
// passed on.
type play struct {
	p      *program
	random *rand.Rand
	log    []string
	mix    []string
}

func (y *play) do(command string) {
	y.log = append(y.log, command+": "+y.p.obey(command))
}

// some executes a few random commands.
func (y *play) some(most int) {
	for range y.random.IntN(most + 1) {
		what := y.mix[y.random.IntN(len(y.mix))]
		y.do(fmt.Sprintf("%s %d %d %d", what, y.random.IntN(playPages), 1+y.random.IntN(playPages/4),
			y.random.IntN(playPages)))
	}
}

// playPages is the number of pages that the commands use: few, so that they overlap.
const playPages = 48

// round makes a round and executes commands while it sends.
func (y *play) round(s *Source, target *copied) {
	y.log = append(y.log, "round")
	_, err := s.Round(context.Background(), sinkFunc(func(run Run, data []byte) error {
		if y.random.IntN(4) == 0 {
			y.log = append(y.log, fmt.Sprintf("while %#x was sent", run.Address))
			y.some(3)
		}
		return target.place(run, data)
	}))
	must(y.p.t, err)
}

// TestAnySequence does anything with memory in any order during rounds, and compares all pages at the end.
// The kernel's tracking of writes is most fragile for moved mappings (kernel.WriteProtect.Register).
func TestAnySequence(t *testing.T) {
	writes := []string{"write", "write", "write", "read"}
	for name, mix := range map[string][]string{
		"move": append([]string{"map", "move", "move", "move"}, writes...),
		"all": append([]string{"map", "map", "unmap", "move", "grow", "drop", "free", "hide", "show",
			"freeze", "show"}, writes...),
		"lock":    append([]string{"map", "move", "lock", "unlock", "unmap"}, writes...),
		"fork":    append([]string{"map", "move", "fork", "drop"}, writes...),
		"protect": append([]string{"map", "hide", "show", "show", "freeze", "move"}, writes...),
	} {
		t.Run(name, func(t *testing.T) {
			for n := range sequences {
				if testing.Short() && n == 5 {
					return
				}
				seed := rand.Uint64()
				p := start(t, "script", 0, 0)
				y := &play{p: p, random: rand.New(rand.NewPCG(seed, 0)), mix: mix}
				t.Cleanup(func() {
					if t.Failed() && y.log != nil {
						t.Logf("seed %d:\n%s", seed, strings.Join(y.log, "\n"))
						y.log = nil
					}
				})
				y.do("map 0 " + fmt.Sprint(playPages/2))
				y.do("write 0 " + fmt.Sprint(playPages/2) + " 1")
				y.whole(t)
				p.end()
				if t.Failed() {
					return
				}
				y.log = nil
			}
		})
	}
}

// sequences is the number of runs of each mix: hundreds find failures that occur once in a hundred.
const sequences = 15

func (y *play) whole(t *testing.T) {
	s := NewSource(SourceConfig{Processes: y.p.group.Procs})
	if y.random.IntN(2) == 0 {
		s.ordering = smallOrdering()
	}
	target := newCopied(t)
	for range 2 + y.random.IntN(6) {
		y.round(s, target)
		y.some(8)
	}
	y.p.freeze()
	target.round(s, true)
	target.round(s, true)
	maps, err := s.Map()
	must(t, err)
	target.verify(y.p, maps)
	y.p.thaw()
	must(t, s.Close())
}
