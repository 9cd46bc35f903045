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

// Ports are not looked for.
func (e *Engine) Ports(context.Context, string) ([]engine.Port, error) { return nil, errAnew }

// Halt is never asked for.
func (e *Engine) Halt(context.Context, string, engine.Leave) (time.Time, error) {
	return time.Time{}, errAnew
}

// Halted is nothing.
func (e *Engine) Halted(context.Context, string) (bool, error) { return false, nil }

// Revive is never asked for.
func (e *Engine) Revive(context.Context, string) (string, error) { return "", errAnew }

// PrepareStart is never asked for.
func (e *Engine) PrepareStart(
	context.Context, engine.Definition, string, []engine.Port,
) (engine.Arrival, error) {
	return nil, errAnew
}
