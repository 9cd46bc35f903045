package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/migration"
)

// step is what one side of a migration does at a step, and what undoes that.
type step struct {
	name migration.StepName
	// do does the step. The time is that of the resume, or zero if the step resumes nothing.
	do   func(context.Context) (time.Time, error)
	undo migration.StepName // "": the step has no undo of its own
	back func(context.Context) error
}

// steps are what one side does in a mode. migration.Steps says in which order.
type steps []step

// do does a step of the list.
func (s steps) do(ctx context.Context, name migration.StepName) (time.Time, error) {
	for _, one := range s {
		if one.name == name {
			return one.do(ctx)
		}
	}
	return time.Time{}, fmt.Errorf("this side of the migration has no step %s", name)
}

// undo undoes a step of the list, by the name of its undo.
func (s steps) undo(ctx context.Context, name migration.StepName) error {
	for _, one := range s {
		if one.back != nil && one.undo == name {
			return one.back(ctx)
		}
	}
	return fmt.Errorf("this side of the migration has no undo %s", name)
}

// untimed is a step that resumes nothing.
func untimed(do func(context.Context) error) func(context.Context) (time.Time, error) {
	return func(ctx context.Context) (time.Time, error) { return time.Time{}, do(ctx) }
}

// with is a step that does one thing in its own way in each mode.
func with[T any](do func(context.Context, T) error, way T) func(context.Context) (time.Time, error) {
	return untimed(func(ctx context.Context) error { return do(ctx, way) })
}
