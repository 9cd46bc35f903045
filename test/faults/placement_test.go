package faults

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
)

// TestPlacementFails breaks agents and the link while a container has a copy at its nearest neighbour. The
// copy is made again automatically; and the policy moves with the container, even if the agent that passes
// it on is killed.
func TestPlacementFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.meet(t)
	w.must(t, w.at, "stage", container, "--nearest", "1")
	copied := w.copyReady(t, "")
	for name, fail := range map[string]func(t *testing.T, from, to string){
		"the target's agent is killed": func(t *testing.T, _, to string) { w.killAgent(t, to) },
		"the source's agent is killed": func(t *testing.T, from, _ string) { w.killAgent(t, from) },
		"the link is lost": func(t *testing.T, from, _ string) {
			w.linkDown(t)
			eventually(t, "the copy to be lost", func() error {
				if told, err := w.placementOf(t, from); err != nil || told.State == migration.StageReady {
					return fmt.Errorf("%s, %w", told.State, err)
				}
				return nil
			})
			w.linkUp(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			fail(t, w.at, other(w.at))
			w.reviveAgents(t)
			w.meet(t)
			copied = w.copyReady(t, copied)
		})
	}
	from := w.at
	id := w.precopy(t)
	w.settle(t, id)
	if w.at == from {
		t.Fatal("it did not move")
	}
	w.killAgent(t, from) // the policy may have arrived, or be on its way
	w.reviveAgents(t)
	w.meet(t)
	w.copyReady(t, copied)
	w.must(t, w.at, "stage", "rm", container)
	w.noCopies(t)
	w.clientIsHappy(t)
}

// copyReady waits until the container's node reports a complete copy elsewhere that differs from before.
func (w *world) copyReady(t *testing.T, before string) (id string) {
	t.Helper()
	eventually(t, "a copy at the neighbour", func() error {
		told, err := w.placementOf(t, w.at)
		if err == nil && (told.State != migration.StageReady || told.Target != other(w.at) ||
			told.ID == before) {
			err = fmt.Errorf("%s at %q: %s", told.State, told.Target, told.Error)
		}
		id = told.ID
		return err
	})
	return id
}

// placementOf returns a node's report of the placed copy; empty if there is none.
func (w *world) placementOf(t *testing.T, node string) (migration.Stage, error) {
	t.Helper()
	reply, err := w.agents[node].Stages(t.Context(), &api.StagesRequest{})
	if err != nil {
		return migration.Stage{}, err
	}
	for _, document := range reply.StagesJson {
		var s migration.Stage
		if err := json.Unmarshal(document, &s); err != nil {
			return s, err
		}
		if s.Placement != nil {
			return s, nil
		}
	}
	return migration.Stage{}, nil
}
