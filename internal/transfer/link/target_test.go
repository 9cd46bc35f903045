package link

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/wire/stream"
	"github.com/godwit/godwit/internal/wire/stream/streamtest"
)

// TestTargetStages: the target goes on when the source has staged, takes one connection, and its answers
// come.
func TestTargetStages(t *testing.T) {
	near, far := streamtest.Pair(t)
	target, log := NewTarget(), slog.New(slog.DiscardHandler)
	if !target.Attach(far, log) || target.Attach(far, log) || target.Data() != far {
		t.Error("not one connection is taken")
	}
	out := stream.NewSections(near, nil)
	if err := errors.Join(out.Whole(KindStaged, "", nil), out.Flush()); err != nil {
		t.Fatal(err)
	}
	if err := target.AwaitStaged(t.Context()); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() { answered <- target.Answer("ready", "name") }()
	section, err := near.Next()
	if err := errors.Join(err, <-answered); err != nil || section.Kind != "ready" || section.Name != "name" {
		t.Errorf("%q %q: %v", section.Kind, section.Name, err)
	}
}

// TestTargetStagesNothing: whatever else comes ends it, as does the end of the connection, and nobody waits
// for longer than wanted.
func TestTargetStagesNothing(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	near, far := streamtest.Pair(t)
	other := NewTarget()
	other.Attach(far, log)
	out := stream.NewSections(near, nil)
	if err := errors.Join(out.Whole("state", "", nil), out.Flush()); err != nil {
		t.Fatal(err)
	}
	if err := other.AwaitStaged(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "comes before the freeze") {
		t.Errorf("another section: %v", err)
	}
	near, far = streamtest.Pair(t)
	broken := NewTarget()
	broken.Attach(far, log)
	_ = near.Close()
	if broken.AwaitStaged(t.Context()) == nil {
		t.Error("a connection that broke is not noticed")
	}
	stopped := errors.New("stopped")
	ctx, stop := context.WithCancelCause(t.Context())
	stop(stopped)
	if err := NewTarget().AwaitStaged(ctx); !errors.Is(err, stopped) {
		t.Errorf("no connection comes: %v", err)
	}
}
