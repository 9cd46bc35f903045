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

// noAnew is engine.Anew of engines that cannot do that.
type noAnew struct{ adapter Adapter }

func (n *noAnew) notAnew() []engine.Problem {
	return []engine.Problem{{
		What: "mode restart", Why: "containers of " + n.adapter.Title() + " cannot be moved in it",
		Remedy: "choose another mode",
	}}
}

func (n *noAnew) refuseAnew() error {
	return fmt.Errorf("mode restart of containers of %s: %w", n.adapter.Title(), errors.ErrUnsupported)
}

// ExamineAnew refuses.
func (n *noAnew) ExamineAnew(context.Context, string) ([]engine.Problem, error) {
	return n.notAnew(), nil
}

// ReserveAnew refuses.
func (n *noAnew) ReserveAnew(context.Context, engine.Definition) ([]engine.Problem, error) {
	return n.notAnew(), nil
}

// Ports refuses.
func (n *noAnew) Ports(context.Context, string) ([]engine.Port, error) { return nil, n.refuseAnew() }

// Halt refuses.
func (n *noAnew) Halt(context.Context, string, engine.Leave) (time.Time, error) {
	return time.Time{}, n.refuseAnew()
}

// Halted reports that the container was not halted.
func (n *noAnew) Halted(context.Context, string) (bool, error) { return false, nil }

// Revive does nothing: nothing was halted.
func (n *noAnew) Revive(context.Context, string) (string, error) { return "", nil }

// PrepareStart refuses.
func (n *noAnew) PrepareStart(
	context.Context, engine.Definition, string, []engine.Port,
) (engine.Arrival, error) {
	return nil, n.refuseAnew()
}
