package containerd

import (
	"context"

	"github.com/godwit/godwit/internal/patience"
)

// asking bounds a query that containerd answers at once unless it is busy.
func asking(ctx context.Context) (context.Context, context.CancelFunc) {
	return patience.Question.For(ctx, Name, patience.Program(programs()[0]))
}

// programs are the names of containerd's programs; the first answers queries.
func programs() []string { return []string{"containerd", "runc", "godwit-runc", "criu"} }

// Programs are the programs whose activity shows that containerd is busy.
func (a *adapter) Programs() []string { return programs() }
