package agent

import (
	"context"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/embedded"
)

// anewEngine is one that starts containers anew elsewhere.
type anewEngine struct{ engine.Engine }

func (anewEngine) Name() string { return "anew" }

func (anewEngine) Capabilities() engine.Capabilities { return engine.Capabilities{} }

func (anewEngine) ExamineAnew(context.Context, string) ([]engine.Problem, error) { return nil, nil }

// TestRestartRemedy: mode restart is advised where the container's engine can do it, and nowhere else.
func TestRestartRemedy(t *testing.T) {
	a := newTestAgent(t)
	others, _, err := openOthers(a)
	if err != nil {
		t.Fatal(err)
	}
	others = append(others, anewEngine{})
	a.engines = engine.NewSet((*embedded.Engine)(nil), others...)
	told := []engine.Problem{{What: "a ring", Remedy: "close it"}, {What: "a task"}}
	for _, one := range others {
		problems := a.restartRemedy(t.Context(), engine.Definition{ID: "one", EngineName: one.Name()}, told)
		for i, p := range problems {
			advised := strings.Contains(p.Remedy, "--mode restart")
			if able := one.Name() == "anew"; advised != able || !strings.HasPrefix(p.Remedy, told[i].Remedy) {
				t.Errorf("%s: %+v", one.Name(), p)
			}
		}
	}
	if told[0].Remedy != "close it" {
		t.Error("what was told is changed")
	}
}
