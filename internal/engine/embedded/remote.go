package embedded

import (
	"context"

	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/memory"
)

// RemotePages connects to the pager of a container. It needs only the container's directory.
func (e *Engine) RemotePages(ctx context.Context, id string) (memory.RemotePages, error) {
	place, err := e.find(id)
	if err != nil {
		return nil, err
	}
	return checkpoint.RemotePages(ctx, id, place.remoteSocket())
}
