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

// noAnew refuses mode restart.
type noAnew struct{}

func anewProblems() []engine.Problem {
	return []engine.Problem{{
		What: "mode restart", Why: "it is not made for LXC containers",
		Remedy: "choose another mode, or stop the container and copy it with lxc-copy",
	}}
}

// ExamineAnew refuses.
func (noAnew) ExamineAnew(context.Context, string) ([]engine.Problem, error) {
	return anewProblems(), nil
}

// ReserveAnew refuses.
func (noAnew) ReserveAnew(context.Context, engine.Definition) ([]engine.Problem, error) {
	return anewProblems(), nil
}

// Ports refuses.
func (noAnew) Ports(context.Context, string) ([]engine.Port, error) { return nil, errAnew }

// Halt refuses.
func (noAnew) Halt(context.Context, string, engine.Leave) (time.Time, error) {
	return time.Time{}, errAnew
}

// Halted returns false.
func (noAnew) Halted(context.Context, string) (bool, error) { return false, nil }

// Revive refuses.
func (noAnew) Revive(context.Context, string) (string, error) { return "", errAnew }

// PrepareStart refuses.
func (noAnew) PrepareStart(
	context.Context, engine.Definition, string, []engine.Port,
) (engine.Arrival, error) {
	return nil, errAnew
}
