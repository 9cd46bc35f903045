package agent

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/memory"
)

// TestBeside has the dump fail while the last round is under way, which would take for ever, and
// wants that nobody waits.
func TestBeside(t *testing.T) {
	forEver := func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	dump, round := errors.New("the dump failed"), errors.New("the round failed")
	if err := beside(t.Context(), forEver)(dump); !errors.Is(err, dump) || errors.Is(err, context.Canceled) {
		t.Errorf("the dump failed: %v", err)
	}
	fails := func(context.Context) error { return round }
	if err := beside(t.Context(), fails)(dump); !errors.Is(err, dump) || !errors.Is(err, round) {
		t.Errorf("both failed: %v", err)
	}
	if err := beside(t.Context(), fails)(nil); !errors.Is(err, round) {
		t.Errorf("the round failed: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := beside(ctx, forEver)(nil); !errors.Is(err, context.Canceled) {
		t.Errorf("both were interrupted: %v", err)
	}
	works := func(ctx context.Context) error { return ctx.Err() }
	if err := beside(t.Context(), works)(nil); err != nil {
		t.Errorf("both were done: %v", err)
	}
}

// TestRestless wants two rounds to tell only if the first was all the memory and the second nearly
// that again.
func TestRestless(t *testing.T) {
	all := memory.RoundStats{Pages: 1000, SentBytes: 4e6, Duration: 10 * time.Second}
	again := memory.RoundStats{Pages: 950, SentBytes: 4e6, Duration: 10 * time.Second,
		Interval: 10 * time.Second}
	shorter, less := again, again
	shorter.Duration = 5 * time.Second
	less.Pages = 800 // that did not compress as well
	for what, c := range map[string]struct {
		m     memorySource
		ahead int
		want  bool
	}{
		"one round":                    {memorySource{history: []memory.RoundStats{all}}, 0, false},
		"all again":                    {memorySource{history: []memory.RoundStats{all, again}}, 0, true},
		"fewer pages of as many bytes": {memorySource{history: []memory.RoundStats{all, less}}, 0, false},
		"in a shorter time":            {memorySource{history: []memory.RoundStats{all, shorter}}, 0, false},
		"the target had some": {memorySource{partly: true, history: []memory.RoundStats{all, again}},
			0, false},
		"ahead": {memorySource{history: []memory.RoundStats{all, again, again}}, 1, false},
		"three": {memorySource{partly: true,
			history: []memory.RoundStats{all, shorter, less}}, 0, true},
		"three after one ahead": {memorySource{history: []memory.RoundStats{all, again, shorter, less}},
			1, true},
	} {
		if got := c.m.restless(c.ahead); got != c.want {
			t.Errorf("%s: %t", what, got)
		}
	}
}
