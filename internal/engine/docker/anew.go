package docker

import (
	"context"
	"fmt"
	"time"

	"errors"

	"github.com/godwit/godwit/internal/engine"
)

// Containers of Docker do not move without their processes: a Docker at the target starts them as well by itself.

func notAnew() []engine.Problem {
	return []engine.Problem{{
		What: "mode restart", Why: "containers of Docker cannot be moved in it", Remedy: "choose another mode",
	}}
}

func refuseAnew() error {
	return fmt.Errorf("mode restart of containers of Docker: %w", errors.ErrUnsupported)
}

// ExamineAnew says that it cannot be.
func (e *Engine) ExamineAnew(context.Context, string) ([]engine.Problem, error) {
	return notAnew(), nil
}

// ReserveAnew says that it cannot be.
func (e *Engine) ReserveAnew(context.Context, engine.Definition) ([]engine.Problem, error) {
	return notAnew(), nil
}

// Ports are not looked at.
func (e *Engine) Ports(context.Context, string) ([]engine.Port, error) { return nil, refuseAnew() }

// Halt refuses.
func (e *Engine) Halt(context.Context, string) (time.Time, error) { return time.Time{}, refuseAnew() }

// Halted knows of none.
func (e *Engine) Halted(context.Context, string) (bool, error) { return false, nil }

// Revive has nothing to start again.
func (e *Engine) Revive(context.Context, string) (string, error) { return "", nil }

// ArriveAnew refuses.
func (e *Engine) ArriveAnew(context.Context, engine.Definition, string, []engine.Port) (engine.Arrival, error) {
	return nil, refuseAnew()
}
