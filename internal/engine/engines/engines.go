// Package engines lists the engines that Godwit knows. A new engine adds a line here; whoever works with all
// engines, such as the agent, godwit doctor and the table of engines, takes them from this list. It knows
// nothing of what the engines do.
package engines

import (
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/containerd"
	"github.com/godwit/godwit/internal/engine/docker"
	"github.com/godwit/godwit/internal/engine/embedded"
	"github.com/godwit/godwit/internal/engine/lxc"
	"github.com/godwit/godwit/internal/engine/podman"
)

// All returns all engines, Godwit's own first.
func All() []engine.Kind {
	return []engine.Kind{
		embedded.Kind(),
		docker.Kind(),
		podman.Kind(),
		containerd.Kind(),
		lxc.Kind(),
	}
}

// Facts returns the rows of the table of engines.
func Facts() (rows []engine.Facts) {
	for _, one := range All() {
		rows = append(rows, one.Facts)
	}
	return rows
}
