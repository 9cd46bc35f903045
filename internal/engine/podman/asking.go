package podman

import (
	"context"

	"github.com/godwit/godwit/internal/patience"
)

// asking bounds a query that Podman answers at once unless it is busy.
func asking(ctx context.Context) (context.Context, context.CancelFunc) {
	return patience.Question.For(ctx, title, patience.Program(programs()[0]))
}

// programs are the names of Podman's programs; the first answers queries.
func programs() []string {
	return []string{"podman", "conmon", "netavark", "runc", "crun", "godwit-runc", "criu"}
}

// Programs are the programs whose activity shows that Podman is busy.
func (a *adapter) Programs() []string { return programs() }
