package docker

import (
	"context"

	"github.com/godwit/godwit/internal/patience"
)

// asking bounds a question to Docker that it answers at once unless it is busy with that very container.
func asking(ctx context.Context) (context.Context, context.CancelFunc) {
	return patience.Question.For(ctx, title, patience.Programs(programs()...))
}

// programs are those that work for Docker.
func programs() []string { return []string{"dockerd", "containerd", "runc", "godwit-runc", "criu"} }

// Programs are those whose work shows that Docker is busy with something.
func (a *adapter) Programs() []string { return programs() }
