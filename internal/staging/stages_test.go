package staging

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/identity"
)

func TestPacer(t *testing.T) {
	now := time.Unix(1000, 0)
	var p Pacer
	if !p.Due(now) {
		t.Error("the first round is not due")
	}
	for _, test := range []struct{ took, pause time.Duration }{
		{time.Millisecond, minPause}, {time.Second, 9 * time.Second}, {time.Minute, 9 * time.Minute},
	} {
		p.Did(now, now.Add(test.took))
		due := now.Add(test.took + test.pause)
		if p.Due(due.Add(-time.Nanosecond)) || !p.Due(due) {
			t.Errorf("after a round of %s the next is not due %s later", test.took, test.pause)
		}
	}
}

// TestOneStagePerContainer: there is one tracker of a container's memory.
func TestOneStagePerContainer(t *testing.T) {
	s := newNodes(t).stages
	stageAt := func(container, node string) *Stage {
		return newStage(s, migration.Spec{}, engine.Definition{ID: container, Name: "web"},
			identity.Node{Name: node})
	}
	first := stageAt("c1", "b")
	if g, again, err := s.add(first); g != first || again || err != nil {
		t.Fatalf("the first: again %v, %v", again, err)
	}
	if g, again, err := s.add(stageAt("c1", "b")); g != first || !again || err != nil {
		t.Errorf("at the same node: again %v, %v", again, err)
	}
	if _, _, err := s.add(stageAt("c1", "c")); !errors.Is(err, engine.ErrBusy) ||
		!strings.Contains(err.Error(), "stage rm web b") {
		t.Errorf("at another node: %v", err)
	}
	if _, again, err := s.add(stageAt("c2", "c")); again || err != nil {
		t.Errorf("another container: again %v, %v", again, err)
	}
	if g, err := s.Find("web", "b"); g != first || err != nil {
		t.Errorf("find: %v", err)
	}
	if _, err := s.Find("web", "z"); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("find what is not there: %v", err)
	}
	for _, g := range s.all() {
		close(g.done) // they were never begun
	}
	first.cancel(ErrRemoved)
	s.forget(first)
	list := s.List()
	if len(list) != 2 || list[1].ContainerID != "c1" || s.Of("c1") != nil {
		t.Errorf("after its end: %+v", list)
	}
}

// TestStrike: what is listed and has ended can be taken off the list.
func TestStrike(t *testing.T) {
	s := newNodes(t).stages
	for _, node := range []string{"b", "c", "b"} {
		s.ended = append(s.ended, migration.Stage{Kind: migration.LayersCopy, Container: "web",
			ContainerID: "0a1b2c", Target: node})
	}
	if s.Strike("web", "d") || s.Strike("cache", "b") || len(s.List()) != 3 {
		t.Errorf("others were taken off: %+v", s.List())
	}
	if !s.Strike("0a", "b") || s.Strike("web", "b") || len(s.List()) != 1 {
		t.Errorf("left: %+v", s.List())
	}
}

// TestStageIsNotTakenWhenItEnds: a migration that waits for a stage does without it when that ends.
func TestStageIsNotTakenWhenItEnds(t *testing.T) {
	s := newNodes(t).stages
	g := newStage(s, migration.Spec{}, engine.Definition{ID: "c1"}, identity.Node{Name: "b"})
	go close(g.done)
	if taken, err := g.Take(t.Context(), testMigration, 0, func(int64) {}); taken != nil || err != nil {
		t.Errorf("%+v, %v", taken, err)
	}
	waiting := newStage(s, migration.Spec{}, engine.Definition{ID: "c1"}, identity.Node{Name: "b"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := waiting.Take(ctx, testMigration, 0, func(int64) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("of a migration that was cancelled: %v", err)
	}
}

func TestStageAnswer(t *testing.T) {
	problem := []migration.Problem{{What: "memory", Why: "too little"}}
	message, err := envelopes.Encode(migration.Message{Kind: migration.KindReserved, Problems: problem})
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		envelope *api.Envelope
		want     string
	}{
		"refused":    {&api.Envelope{Message: message, Reservation: &api.Reservation{}}, "too little"},
		"no message": {&api.Envelope{Reservation: &api.Reservation{}}, "another kind"},
		"no room":    {&api.Envelope{Message: &api.Message{}}, "another kind"},
		"no document": {&api.Envelope{Message: &api.Message{ProblemsJson: []byte("{")},
			Reservation: &api.Reservation{}}, "message"},
	} {
		content, err := proto.Marshal(test.envelope)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeAnswer(content); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := decodeAnswer([]byte{255}); err == nil {
		t.Error("what is no message is accepted")
	}
}
