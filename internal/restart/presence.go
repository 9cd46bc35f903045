package restart

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/engine"
)

// Holding tells in words what this node has of a container of the embedded engine; empty: nothing. A
// migration is looked for first: what comes or goes is known to it for longer than to the engine.
//
// An arrival that never runs counts as nothing, also while its removal fails: the migration has told
// the source the same. The engine is asked before the journals that cannot be used, because the
// container of such a journal may run here: the journal may have been put back to an older state. A
// journal that cannot be used and does not name its container leaves the answer to the engine: nothing
// of a container that comes can run before the engine has it, or of a container that leaves after the
// engine has nothing of it.
func (r *Restarts) Holding(ctx context.Context, container string) (string, error) {
	never := false
	if id, neverRuns := r.migrations.Of(container); id != "" {
		if never = neverRuns; !never {
			return "migration " + id + " of it is under way", nil
		}
	}
	one, err := r.engine.Inspect(ctx, container)
	switch {
	case err == nil && (!never || one.State != engine.Arriving):
		return "it is " + string(one.State), nil
	case err != nil && !errors.Is(err, engine.ErrNotFound):
		return "", err
	}
	if id := r.migrations.UnreadAmong(container); id != "" {
		return "", status.Errorf(codes.Unavailable,
			`the journal of the container's migration %s cannot be used: see "godwit migration ls" there`, id)
	}
	return "", nil
}
