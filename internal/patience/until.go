package patience

import (
	"context"
	"time"
)

// Until waits for a time, or returns the error of the context that ends before.
func Until(ctx context.Context, at time.Time) error {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
