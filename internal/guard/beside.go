package guard

import (
	"context"
	"errors"
)

// Beside runs one thing beside another. What it returns is told what has become of the other, waits
// for the one and returns the error of both. If the other has failed the one is given up: it may
// take long, and a frozen container waits for it.
func Beside(ctx context.Context, one func(context.Context) error) (wait func(other error) error) {
	ctx, giveUp := context.WithCancel(ctx)
	done := Go(func() error { return one(ctx) })
	return func(other error) error {
		defer giveUp()
		if other == nil {
			return <-done
		}
		giveUp()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			return errors.Join(other, err)
		}
		return other
	}
}
