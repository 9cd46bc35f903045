package oci

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/engine"
)

// Containers of other engines do not move without their processes: the engine at the target can as well
// start them by itself.

func (e *Engine) notAnew() []engine.Problem {
	return []engine.Problem{{
		What: "mode restart", Why: "containers of " + e.adapter.Title() + " cannot be moved in it",
		Remedy: "choose another mode",
	}}
}

func (e *Engine) refuseAnew() error {
	return fmt.Errorf("mode restart of containers of %s: %w", e.adapter.Title(), errors.ErrUnsupported)
}

// ExamineAnew refuses.
func (e *Engine) ExamineAnew(context.Context, string) ([]engine.Problem, error) {
	return e.notAnew(), nil
}

// ReserveAnew refuses.
func (e *Engine) ReserveAnew(context.Context, engine.Definition) ([]engine.Problem, error) {
	return e.notAnew(), nil
}

// Ports refuses.
func (e *Engine) Ports(context.Context, string) ([]engine.Port, error) { return nil, e.refuseAnew() }

// Halt refuses.
func (e *Engine) Halt(context.Context, string, engine.Leave) (time.Time, error) {
	return time.Time{}, e.refuseAnew()
}

// Halted reports that the container was not halted.
func (e *Engine) Halted(context.Context, string) (bool, error) { return false, nil }

// Revive does nothing: nothing was halted.
func (e *Engine) Revive(context.Context, string) (string, error) { return "", nil }

// PrepareStart refuses.
func (e *Engine) PrepareStart(
	context.Context, engine.Definition, string, []engine.Port,
) (engine.Arrival, error) {
	return nil, e.refuseAnew()
}
