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

// UntilClosed waits for a channel to be closed, or returns why the context ended before.
func UntilClosed(ctx context.Context, closed <-chan struct{}) error {
	select {
	case <-closed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
