package podman

import (
	"context"

	"github.com/godwit/godwit/internal/patience"
)

// asking bounds a question to Podman that it answers at once unless it is busy.
func asking(ctx context.Context) (context.Context, context.CancelFunc) {
	return patience.Question.For(ctx, title, patience.Program(programs()[0]))
}

// programs are those that work for Podman, the one that answers first.
func programs() []string {
	return []string{"podman", "conmon", "netavark", "runc", "crun", "godwit-runc", "criu"}
}

// Programs are those whose work shows that Podman is busy with something.
func (a *adapter) Programs() []string { return programs() }
