package containerd

import (
	"context"

	"github.com/godwit/godwit/internal/patience"
)

// asking bounds a question to containerd that it answers at once unless it is busy with that very container.
func asking(ctx context.Context) (context.Context, context.CancelFunc) {
	return patience.Question.For(ctx, Name, patience.Programs(programs()...))
}

// programs are those that work for containerd.
func programs() []string { return []string{"containerd", "runc", "godwit-runc", "criu"} }

// Programs are those whose work shows that containerd is busy with something.
func (a *adapter) Programs() []string { return programs() }
