package rpc

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/memory/postcopy"
)

// SpillKeeper is the work of a migration to this node, which keeps a key for the source.
type SpillKeeper interface {
	// KeepSpillKey keeps a key, if there is one, and returns the one that is kept.
	KeepSpillKey(key []byte) []byte
}

// Spill keeps the key of pages that the source of a migration has written to its disk, and gives it back to
// that source. It is in the memory of this agent only.
func (s *OutcomeService) Spill(ctx context.Context, request *api.SpillRequest) (*api.SpillReply, error) {
	from, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	m, err := s.Moves.With(from, request.Migration)
	if err != nil {
		return nil, Error(err)
	}
	work, here := m.Work().(SpillKeeper)
	if !here || m.Tracker.Spec.Source != from {
		return nil, status.Errorf(codes.PermissionDenied, "node %s is not the source of migration %s",
			from, request.Migration)
	}
	if n := len(request.Key); n != 0 && n != len(postcopy.SpillKey{}) {
		return nil, status.Errorf(codes.InvalidArgument, "a key of %d bytes", n)
	}
	return &api.SpillReply{Key: work.KeepSpillKey(request.Key)}, nil
}
