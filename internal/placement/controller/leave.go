package controller

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
)

// handOver gives the policy to the node where the container is now. What that refuses it will refuse again.
func (f *follower) handOver(ctx context.Context, to gone, now time.Time) string {
	p := f.leaving(f.policy)
	p.Arrive(to.node)
	if len(p.Path) == 0 && p.Nearest == 0 {
		return f.farewell(ctx)
	}
	err := f.owner.world.follow(ctx, to, p)
	switch {
	case err == nil:
		return "the copy has gone to " + to.node + " with the container"
	case now.After(p.Until):
		return "its time is over"
	}
	switch status.Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.Unimplemented,
		codes.ResourceExhausted:
		return "refused by " + to.node + ": " + api.Plain(err)
	}
	return ""
}

// farewell lets the copies go of a container that is where its path ends.
func (f *follower) farewell(ctx context.Context) string {
	for _, c := range f.snapshotCopies() {
		f.drop(ctx, c.Node)
	}
	return "the container is where its path ends"
}

// save writes down how far it is.
func (f *follower) save(now time.Time, atOnce bool) error {
	if !atOnce && now.Sub(f.savedAt) < saveEvery {
		return nil
	}
	f.savedAt = now // also if that fails: a disk that is full is not asked all the time
	return f.record.save(f.policy)
}
