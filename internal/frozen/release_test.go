package frozen

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// durable is a target that is asked whether it has on disk what it received.
type durable struct {
	api.PeerClient
	asked int
	err   error
}

func (d *durable) Durable(context.Context, *api.DurableRequest, ...grpc.CallOption) (*api.DurableReply,
	error) {
	d.asked++
	return &api.DurableReply{}, d.err
}

func (d *durable) ask(ctx context.Context, _ time.Duration,
	call func(context.Context, api.PeerClient) error) error {
	return call(ctx, d)
}

// TestAwaitUnneeded: the copy stays until the target has everything, unless an operator has decided; whoever
// is told that the target may have lost files has to decide.
func TestAwaitUnneeded(t *testing.T) {
	one, peer := copyOf(t, &testEngine{}), &durable{}
	if err := one.AwaitUnneeded(t.Context(), peer.ask); err != nil || peer.asked != 1 {
		t.Errorf("asked %d times: %v", peer.asked, err)
	}
	peer.err = status.Error(codes.Unavailable, "away")
	if err := one.AwaitUnneeded(t.Context(), peer.ask); err == nil ||
		!strings.Contains(err.Error(), "files at b: ") {
		t.Errorf("a target that is away: %v", err)
	}
	peer.err = status.Error(codes.DataLoss, "it was reset")
	var refused *migration.Refusal
	if err := one.AwaitUnneeded(t.Context(), peer.ask); !errors.As(err, &refused) ||
		!strings.Contains(refused.Problems[0].Remedy, "--runs-at source") {
		t.Errorf("a target that has lost files: %v", err)
	}
	one.move.record.Resolved = true
	if err := one.AwaitUnneeded(t.Context(), peer.ask); err != nil || peer.asked != 3 {
		t.Errorf("an operator has decided, and it is asked: %v", err)
	}
}

// TestMayTakeBack: a container that was handed over goes on here only if its copy is here, and the target
// does not take its memory.
func TestMayTakeBack(t *testing.T) {
	frozen := engine.Container{State: engine.Frozen}
	away := errors.New("cannot connect")
	for name, c := range map[string]struct {
		of    *testEngine
		state migration.State
		well  bool
		want  error
	}{
		"not handed over": {of: &testEngine{}, state: migration.InDoubt, well: true},
		"handed over":     {of: &testEngine{inspects: frozen}, state: migration.Committed},
		"the target is well": {of: &testEngine{inspects: frozen}, state: migration.Committed, well: true,
			want: api.ErrRefused},
		"gone": {of: &testEngine{missing: true}, state: migration.Committed, want: api.ErrRefused},
		"away": {of: &testEngine{silent: away}, state: migration.Committed, well: true, want: away},
	} {
		one := copyOf(t, c.of)
		one.move.record.State = c.state
		err := one.MayTakeBack(t.Context(), false, func() bool { return c.well })
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
