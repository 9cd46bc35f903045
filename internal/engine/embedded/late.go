package embedded

import (
	"context"

	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/memory"
)

// LatePages connects to the pager of a container. All that is needed for that is its directory.
func (e *Engine) LatePages(ctx context.Context, id string) (memory.LatePages, error) {
	place, err := e.find(id)
	if err != nil {
		return nil, err
	}
	return checkpoint.LatePages(ctx, id, place.lateSocket())
}
