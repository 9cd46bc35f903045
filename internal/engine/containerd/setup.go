package containerd

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/godwit/godwit/internal/engine/oci"
	"github.com/godwit/godwit/internal/engine/shim"
)

// Settings makes godwit-runc known to containerd, for which nothing is necessary: each container names its
// runtime's program.
type Settings struct{}

// AddRuntime does nothing.
func (Settings) AddRuntime(string) error { return nil }

// Unneeded returns an error if godwit-runc cannot be removed because a container needs it.
func (Settings) Unneeded(ctx context.Context) error {
	needed, err := needed(ctx)
	if err == nil && len(needed) > 0 {
		err = fmt.Errorf("containers that have come by it need runtime %s: %s; remove or move them first",
			oci.Runtime, strings.Join(needed, ", "))
	}
	return err
}

// RemoveRuntime requires that no container needs godwit-runc.
func (s Settings) RemoveRuntime(ctx context.Context) error { return s.Unneeded(ctx) }

// Needs reports whether a container needs, or may need, godwit-runc.
func (Settings) Needs(ctx context.Context) bool {
	needed, err := needed(ctx)
	return err != nil || len(needed) > 0
}

func needed(ctx context.Context) (names []string, err error) {
	a, err := newAdapter(DefaultSocket)
	if err != nil || a.Away() != nil {
		return nil, err
	}
	all, err := a.List(ctx, func(string) bool { return true })
	if err != nil {
		return nil, fmt.Errorf("ask containerd for its containers: %w", err)
	}
	for _, found := range all {
		if settings, err := runtimeOptions(native(found)); err == nil &&
			filepath.Base(settings.GetBinaryName()) == shim.Program {
			names = append(names, nameOf(found.ID))
		}
	}
	return names, nil
}
