package agent

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
)

// TestHearReady: the target answers once, and only who has asked.
func TestHearReady(t *testing.T) {
	s := &source{}
	if s.hearReady() == nil {
		t.Error("without a request")
	}
	if err := s.awaitReady(t.Context()); err != nil {
		t.Errorf("who does not ask waits: %v", err)
	}
	s.ready = make(chan struct{})
	if err := s.hearReady(); err != nil {
		t.Error(err)
	}
	if err := s.awaitReady(t.Context()); err != nil {
		t.Error(err)
	}
	if s.hearReady() == nil {
		t.Error("it answers twice")
	}
}

// early is an arrival whose engine has started the container.
type early struct{ engine.Arrival }

// TestStartLateRefuses: no source has a container started that was started already.
func TestStartLateRefuses(t *testing.T) {
	one := &target{arrival: early{}}
	if err := one.startLate(t.Context(), nil); !errors.Is(err, errInvalid) {
		t.Error(err)
	}
	one = &target{startedLate: true}
	if err := one.startLate(t.Context(), nil); !errors.Is(err, errInvalid) {
		t.Error(err)
	}
}

// TestLimitWait: when the engine has waited for as long as it can what comes is given up, with the
// reason; an engine that waits for ever ends nothing.
func TestLimitWait(t *testing.T) {
	ctx, giveUp := context.WithCancelCause(t.Context())
	defer giveUp(nil)
	limitWait(time.Time{}, func(error) { t.Error("an engine that waits for ever has given up") })
	limitWait(time.Now(), giveUp)
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, errEnginePatience) {
		t.Error(err)
	}
}
