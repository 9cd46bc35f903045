package agent

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/migration"
)

// TestStepTables: each side has all of its steps of each mode, with their undos, each of them once.
func TestStepTables(t *testing.T) {
	s, target := &source{}, &target{}
	for _, mode := range migration.Modes() {
		tables := map[migration.Side]steps{migration.Source: s.steps(mode),
			migration.Target: target.steps(mode)}
		for _, wanted := range migration.Steps(mode) {
			found := 0
			for _, row := range tables[wanted.At] {
				if row.name != wanted.Name {
					continue
				}
				found++
				if row.do == nil || row.undo != wanted.Undo || (row.back == nil) != (wanted.Undo == "") {
					t.Errorf("%s, %s: its undo is %q, want %q", mode, wanted.Name, row.undo, wanted.Undo)
				}
			}
			if found != 1 {
				t.Errorf("%s: the %s has %d rows for step %s", mode, wanted.At, found, wanted.Name)
			}
		}
	}
}

// TestStepsByName does and undoes the row that is named, and no other.
func TestStepsByName(t *testing.T) {
	undone := errors.New("undone")
	at := time.Unix(1, 0)
	list := steps{
		{name: migration.StepSend, do: untimed(func(context.Context) error { return nil })},
		{migration.StepFreeze, func(context.Context) (time.Time, error) { return at, nil },
			migration.UndoFreeze, func(context.Context) error { return undone }},
	}
	if got, err := list.do(t.Context(), migration.StepFreeze); err != nil || !got.Equal(at) {
		t.Errorf("freeze: %v, %v", got, err)
	}
	if err := list.undo(t.Context(), migration.UndoFreeze); !errors.Is(err, undone) {
		t.Errorf("thaw: %v", err)
	}
	if _, err := list.do(t.Context(), migration.StepStop); err == nil {
		t.Error("a step that is not in the list was done")
	}
	if err := list.undo(t.Context(), ""); err == nil {
		t.Error("a step without an undo was undone")
	}
}
