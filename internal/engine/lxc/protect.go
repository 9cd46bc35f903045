package lxc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

var _ engine.Protector = (*Engine)(nil)

// Protect protects a frozen copy from other programs.
func (ds *departures) Protect(
	ctx context.Context, id string, hold func(pids []int) error, held func(),
) error {
	defer ds.catalog.lock(id)()
	was, err := ds.identities.departureOf(id)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !was.First.Alive() {
		return nil
	}
	var group *cgroup.Cgroup
	if err == nil {
		group, err = containerGroup(was.First.PID)
	}
	if err == nil {
		err = checkpoint.Protect(ctx, group, ds.identities.place(id, "").spared(), hold, held)
	}
	if err != nil {
		return fmt.Errorf("protect the frozen copy of LXC container %.12s: %w", id, err)
	}
	return nil
}
