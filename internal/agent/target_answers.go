package agent

import (
	"context"

	"github.com/godwit/godwit/internal/control"
	"github.com/godwit/godwit/internal/migrate"
	"github.com/godwit/godwit/internal/migration"
)

// Hear tells the source that the container runs here, and asks whether it has given its copy away.
func (t *target) Hear(ctx context.Context, _ migration.State, _ migration.Side) migrate.Said {
	heard, _ := migrate.TellNow(ctx, t.control, migration.Message{
		Kind: migration.KindRunning, At: t.move.Record().Resumed, Incarnation: t.agent.incarnation(),
	})
	return heard
}

// Attach implements rpc.Attached.
func (t *target) Attach(stream control.Stream, attached func()) error {
	return t.control.Attach(stream, t.hears, attached)
}

// KeepSpillKey implements rpc.SpillKeeper.
func (t *target) KeepSpillKey(key []byte) []byte { return t.memory.KeepSpillKey(key) }

// MissingPages implements migrate.Filled.
func (t *target) MissingPages(ctx context.Context, how string) (missing bool, err error) {
	return t.memory.Missing(ctx, how)
}

// GiveUpPages implements migrate.Filled.
func (t *target) GiveUpPages(ctx context.Context, how string) error { return t.memory.GiveUp(ctx, how) }
