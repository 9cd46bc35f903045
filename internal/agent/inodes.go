package agent

import (
	"context"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/anew"
	"github.com/godwit/godwit/internal/transfer/volumes"
)

// examineInodes finds open files whose inodes the container's programs remember, unless the user knows
// better.
func (a *Agent) examineInodes(
	ctx context.Context, definition engine.Definition, chosen volumes.Chosen, settings migration.Settings,
) ([]engine.Problem, error) {
	if settings.NewInodes {
		return nil, nil
	}
	found, err := a.volumes.ExamineInodes(ctx, definition, chosen)
	return anew.Remedy(ctx, a.engines, definition, found), err
}

// examineInodes is asked when the volumes are chosen, and again when all is ready for the freeze: a database
// may have been opened meanwhile.
func (s *source) examineInodes(ctx context.Context) error {
	return refused(s.agent.examineInodes(ctx, s.definition, s.volumes.Chosen(), s.settings.Get()))
}
