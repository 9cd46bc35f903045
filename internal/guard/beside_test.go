package guard_test

import (
	"context"
	"errors"
	"testing"

	"github.com/godwit/godwit/internal/guard"
)

// TestBeside has the dump fail while the last round is under way, which would take for ever, and
// wants that nobody waits.
func TestBeside(t *testing.T) {
	forEver := func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	dump, round := errors.New("the dump failed"), errors.New("the round failed")
	err := guard.Beside(t.Context(), forEver)(dump)
	if !errors.Is(err, dump) || errors.Is(err, context.Canceled) {
		t.Errorf("the dump failed: %v", err)
	}
	fails := func(context.Context) error { return round }
	if err := guard.Beside(t.Context(), fails)(dump); !errors.Is(err, dump) || !errors.Is(err, round) {
		t.Errorf("both failed: %v", err)
	}
	if err := guard.Beside(t.Context(), fails)(nil); !errors.Is(err, round) {
		t.Errorf("the round failed: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := guard.Beside(ctx, forEver)(nil); !errors.Is(err, context.Canceled) {
		t.Errorf("both were interrupted: %v", err)
	}
	works := func(ctx context.Context) error { return ctx.Err() }
	if err := guard.Beside(t.Context(), works)(nil); err != nil {
		t.Errorf("both were done: %v", err)
	}
}
