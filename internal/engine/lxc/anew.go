package lxc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/engine"
)

// errAnew says that mode restart is not for LXC containers.
var errAnew = fmt.Errorf("mode restart of an LXC container: %w", errors.ErrUnsupported)

func anewProblems() []engine.Problem {
	return []engine.Problem{{
		What: "mode restart", Why: "it is not made for LXC containers",
		Remedy: "choose another mode, or stop the container and copy it with lxc-copy",
	}}
}

// ExamineAnew refuses.
func (e *Engine) ExamineAnew(context.Context, string) ([]engine.Problem, error) {
	return anewProblems(), nil
}

// ReserveAnew refuses.
func (e *Engine) ReserveAnew(context.Context, engine.Definition) ([]engine.Problem, error) {
	return anewProblems(), nil
}

// Ports refuses.
func (e *Engine) Ports(context.Context, string) ([]engine.Port, error) { return nil, errAnew }

// Halt refuses.
func (e *Engine) Halt(context.Context, string, engine.Leave) (time.Time, error) {
	return time.Time{}, errAnew
}

// Halted returns false.
func (e *Engine) Halted(context.Context, string) (bool, error) { return false, nil }

// Revive refuses.
func (e *Engine) Revive(context.Context, string) (string, error) { return "", errAnew }

// PrepareStart refuses.
func (e *Engine) PrepareStart(
	context.Context, engine.Definition, string, []engine.Port,
) (engine.Arrival, error) {
	return nil, errAnew
}
