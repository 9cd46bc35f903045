package agent

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
)

// placeless is an arrival of which only the places of trees are asked.
type placeless struct{ engine.Arrival }

func (placeless) TreePath(files.TreeKind, string) (string, error) { return "", io.ErrUnexpectedEOF }

// TestUndoWaitsForNoSource: a source that stops in the middle of a round keeps nothing at the target.
func TestUndoWaitsForNoSource(t *testing.T) {
	target := &target{arrival: placeless{}, offer: &api.Offer{},
		files: fileTarget{ended: make(chan struct{})}}
	in, out := io.Pipe()
	defer out.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	if !target.files.begin(cancel) {
		t.Fatal("the connection for files is not taken")
	}
	context.AfterFunc(ctx, func() { _ = in.Close() }) // as the end of the connection does
	go func() {
		defer close(target.files.ended)
		if target.files.take(ctx, target, in) == nil {
			t.Error("half a round is a round")
		}
	}()
	if _, err := out.Write([]byte{0}); err != nil { // the round is being read
		t.Fatal(err)
	}
	undone := make(chan error, 1)
	go func() {
		_, err := target.files.halt(errInterrupted)
		undone <- errors.Join(err, target.files.undo())
	}()
	select {
	case err := <-undone:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits for the rest of the round")
	}
}
