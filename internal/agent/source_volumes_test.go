package agent

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
)

// TestTreesThatMove: a volume that stays is left out, and nothing else that has its name.
func TestTreesThatMove(t *testing.T) {
	trees := []files.Tree{
		{Kind: files.Writable}, {Kind: files.Memory, Name: "shm"}, {Kind: files.VolumeOf, Name: "shm"},
		{Kind: files.VolumeOf, Name: "moves"},
		{Kind: files.Memory, Name: "/t"}, {Kind: files.VolumeOf, Name: "/b"},
	}
	moving := treesThatMove(slices.Clone(trees), []engine.Volume{
		{Name: "shm", Path: "/shared", Stays: true}, {Name: "moves", Path: "/m"},
		{Kind: engine.Tmpfs, Path: "/t", Stays: true},
		{Kind: engine.Bind, Source: "/host", Path: "/b", Stays: true},
	})
	if want := []files.Tree{trees[0], trees[1], trees[3]}; !slices.Equal(moving, want) {
		t.Errorf("these move: %v, not %v", moving, want)
	}
}

// TestPatience: what the kernel never ends is waited for only as long as somebody wants it, and
// what has ended says how.
func TestPatience(t *testing.T) {
	never := make(chan struct{})
	defer close(never)
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	cancel(enough)
	err := patiently(ctx, func() error { <-never; return nil })
	if !errors.Is(err, enough) {
		t.Errorf("it was waited for: %v", err)
	}
	failed := errors.New("failed")
	if err := patiently(t.Context(), func() error { return failed }); !errors.Is(err, failed) {
		t.Errorf("how it ended: %v", err)
	}
}
