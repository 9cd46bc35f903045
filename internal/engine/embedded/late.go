package embedded

import (
	"context"
	"errors"
	"fmt"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pager"
)

// LatePages connects to the pager of a container. All that is needed for that is its directory.
func (e *Engine) LatePages(ctx context.Context, id string) (memory.LatePages, error) {
	place, err := e.find(id)
	if err != nil {
		return nil, err
	}
	late, err := pager.DialLate(ctx, place.lateSocket())
	if errors.Is(err, pager.ErrNoPager) {
		err = engine.ErrNotFilling
	}
	if err != nil {
		return nil, fmt.Errorf("bring pages to container %.12s: %w", id, err)
	}
	return late, nil
}
