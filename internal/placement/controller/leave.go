package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/placement"
)

// leave notes durably that the container has gone to a node, and what of it was kept here. It does
// not wait for what is done just now.
func (f *follower) leave(to gone, kept placement.Copy) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left, f.kept = to, kept
	return f.write(f.told)
}

func (f *follower) goneTo() gone {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.left
}

// stay notes that the container is here again.
func (f *follower) stay() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left, f.kept = gone{}, placement.Copy{}
}

// leaving is the policy with what the container has left here.
func (f *follower) leaving() placement.Policy {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.policy.With(f.kept)
}

// handOver gives the policy to the node where the container is now. What that refuses it will refuse again.
func (f *follower) handOver(ctx context.Context, to gone, now time.Time) string {
	p := f.leaving()
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
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.write(f.policy)
}

// write makes its file, unless it has ended, or nothing is new. The caller holds the lock.
func (f *follower) write(p placement.Policy) error {
	data, err := json.Marshal(document{Policy: p.With(f.kept), Left: f.left.node,
		LeftBy: f.left.migration})
	if err != nil || f.ended || bytes.Equal(data, f.saved) {
		return err
	}
	if err := f.owner.save(f.container, data); err != nil {
		return err
	}
	f.saved = data
	return nil
}
