package agent

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/memory/postcopy"
	"github.com/godwit/godwit/internal/node/rpc"
)

// Spill keeps the key of pages that the source of a migration has written to its disk, and gives it back to
// that source. It is in the memory of this agent only.
func (s *peerService) Spill(ctx context.Context, request *api.SpillRequest) (*api.SpillReply, error) {
	from, err := rpc.Caller(ctx)
	if err != nil {
		return nil, err
	}
	m, err := s.peerMove(ctx, request.Migration)
	if err != nil {
		return nil, err
	}
	work, here := m.work().(*target)
	if !here || m.tracker.Spec.Source != from {
		return nil, status.Errorf(codes.PermissionDenied, "node %s is not the source of migration %s",
			from, request.Migration)
	}
	if n := len(request.Key); n != 0 && n != len(postcopy.SpillKey{}) {
		return nil, status.Errorf(codes.InvalidArgument, "a key of %d bytes", n)
	}
	return &api.SpillReply{Key: work.memory.KeepSpillKey(request.Key)}, nil
}
