package podman

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/godwit/godwit/internal/engine/oci"
	"github.com/godwit/godwit/internal/engine/shim"
	"github.com/godwit/godwit/internal/kernel"
)

// DefaultSettings is the file that adds godwit-runc to Podman's runtimes, beside the files of others
// (containers.conf(5)).
const DefaultSettings = "/etc/containers/containers.conf.d/50-godwit.conf"

// Settings is the file that adds godwit-runc to Podman's runtimes. Podman reads its configuration each time
// it runs.
type Settings struct{ Path string }

// AddRuntime adds godwit-runc to Podman's runtimes.
func (s Settings) AddRuntime(path string) error {
	text := "# Made by `godwit engine setup podman`.\n[engine.runtimes]\n" + oci.Runtime + " = [" +
		strconv.Quote(path) + "]\n"
	if err := os.MkdirAll(filepath.Dir(s.Path), 0o755); err != nil {
		return fmt.Errorf("configuration of Podman: %w", err)
	}
	return kernel.WriteFileAtomic(s.Path, []byte(text), 0o644)
}

// Unneeded returns an error if godwit-runc cannot be removed because a container needs it.
func (s Settings) Unneeded(ctx context.Context) error {
	a := newAdapter("")
	if a.Away() != nil {
		return nil
	}
	all, err := a.List(ctx, func(string) bool { return false })
	if err != nil {
		return err
	}
	var needed []string
	for _, found := range all {
		if one := native(found); one.OCIRuntime == oci.Runtime ||
			filepath.Base(one.OCIRuntime) == shim.Program {
			needed = append(needed, one.Name)
		}
	}
	if len(needed) > 0 {
		return fmt.Errorf("containers that have come by it need runtime %s: %s; remove or move them first",
			oci.Runtime, strings.Join(needed, ", "))
	}
	return nil
}

// RemoveRuntime removes godwit-runc from Podman's runtimes, unless a container needs it.
func (s Settings) RemoveRuntime(ctx context.Context) error {
	if err := s.Unneeded(ctx); err != nil {
		return err
	}
	if err := os.Remove(s.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("configuration of Podman: %w", err)
	}
	return nil
}
