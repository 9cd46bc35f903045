package controller

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/audit"
	"github.com/godwit/godwit/internal/controller/intake"
	"github.com/godwit/godwit/internal/controller/store"
	"github.com/godwit/godwit/internal/guard"
)

// queuedCommands is how many commands may wait for a node's stream.
const queuedCommands = 256

// uplinkService serves agents.
type uplinkService struct {
	api.UnimplementedUplinkServer
	cluster *cluster
}

// Join makes a node known.
func (s *uplinkService) Join(ctx context.Context, request *api.UplinkJoinRequest) (*api.UplinkJoinReply,
	error) {
	name, err := s.cluster.join(ctx, request.Token)
	if err != nil {
		return nil, status.Error(codes.PermissionDenied, err.Error())
	}
	s.cluster.log.Info("node joined", "node", name)
	s.cluster.callers.keep(ctx, s.cluster.callers.done, audit.Entry{Method: "Join", Node: name})
	s.cluster.kick()
	return &api.UplinkJoinReply{}, nil
}

// Connect serves a node's stream until it ends.
func (s *uplinkService) Connect(stream grpc.BidiStreamingServer[api.Up, api.Down]) error {
	c := s.cluster
	name, err := c.nodeOf(stream.Context())
	if err != nil {
		return status.Error(codes.PermissionDenied, err.Error())
	}
	if err := c.callers.knownNode(stream.Context(), name); err != nil {
		return err
	}
	told, err := whole(stream, c.bounds.node)
	if err != nil {
		return c.refuse(name, err)
	}
	mine := c.arrive(name, told)
	defer c.leave(name, mine)
	if err := stream.Send(&api.Down{Epoch: c.records.term.Epoch()}); err != nil {
		return err
	}
	c.kick()
	heard := guard.Go(func() error { return c.hear(stream, name, mine) })
	expires := time.NewTimer(validFor(stream.Context(), c.now()))
	defer expires.Stop()
	for {
		select {
		case <-expires.C:
			return status.Error(codes.Unauthenticated, "the node's certificate has expired")
		case err := <-heard:
			return err
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-mine.replaced:
			return status.Error(codes.Aborted,
				"the node has connected again: does another machine have its identity?")
		case command := <-mine.commands:
			if err := stream.Send(command); err != nil {
				return err
			}
		}
	}
}

// validFor is how long the certificate of a node that has been verified is still valid.
func validFor(ctx context.Context, now time.Time) time.Duration {
	shown, err := shownBy(ctx)
	if err != nil {
		return 0
	}
	return shown[0].NotAfter.Sub(now)
}

// whole receives the state of a node that connects, in as many parts as it has.
func whole(stream grpc.BidiStreamingServer[api.Up, api.Down], most said) (inventory, error) {
	var told inventory
	first, err := stream.Recv()
	if err != nil {
		return told, err
	}
	if err := checkState(first.State); err != nil {
		return told, status.Error(codes.InvalidArgument, err.Error())
	}
	told.take(first.State)
	for more := first.State.More; ; {
		if err := told.within(most); err != nil {
			return told, status.Error(codes.ResourceExhausted, err.Error())
		}
		if !more {
			return told, nil
		}
		part, err := stream.Recv()
		if err != nil {
			return told, err
		}
		if part.Delta == nil {
			return told, status.Error(codes.InvalidArgument, "a part of the node's state is missing")
		}
		if err := checkDelta(part.Delta); err != nil {
			return told, status.Error(codes.InvalidArgument, err.Error())
		}
		told.change(part.Delta)
		more = part.Delta.More
	}
}

// refuse notes why the controller does not listen to a node, for people who look at the nodes. A connection
// that was lost is no such reason.
func (c *cluster) refuse(name string, err error) error {
	if code := status.Code(err); code == codes.InvalidArgument || code == codes.ResourceExhausted {
		c.mu.Lock()
		defer c.mu.Unlock()
		if why := cut(status.Convert(err).Message()); c.refused[name] != why {
			c.refused[name] = why
			c.log.Error("what a node tells is refused", "node", name, "error", why)
		}
	}
	return err
}

// hear takes over what a node says, until its stream ends. A node that says too much is heard later.
func (c *cluster) hear(stream grpc.BidiStreamingServer[api.Up, api.Down], name string, mine *session) error {
	pace := intake.NewRates(c.bounds.messages, time.Now)
	for {
		up, err := stream.Recv()
		if err != nil {
			return c.refuse(name, err)
		}
		for wait := pace.Take(name); wait > 0; wait = pace.Take(name) {
			select {
			case <-time.After(wait):
			case <-stream.Context().Done():
				return stream.Context().Err()
			}
		}
		if up.Delta != nil {
			if err := c.delta(name, mine, up.Delta); err != nil {
				return c.refuse(name, err)
			}
		}
		if up.Outcome != nil {
			if err := c.outcome(stream.Context(), name, up.Outcome); err != nil {
				return status.Error(codes.Unavailable, err.Error()) // it is asked again
			}
		}
	}
}

// arrive makes a stream the node's, and puts the commands into it that the node must get again.
func (c *cluster) arrive(name string, told inventory) *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	live := c.live[name]
	if live == nil {
		live = &liveNode{}
		c.live[name] = live
	}
	if live.session != nil {
		close(live.session.replaced)
	}
	live.session = &session{commands: make(chan *api.Down, queuedCommands), replaced: make(chan struct{})}
	live.count(nil)
	live.since, live.inventory = c.now(), told
	live.count(c.places)
	delete(c.refused, name)
	for _, job := range c.queue.Repeat(name) {
		c.send(job)
	}
	c.log.Info("node connected", "node", name, "containers", len(live.containers))
	return live.session
}

func (c *cluster) leave(name string, mine *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if live := c.live[name]; live != nil && live.session == mine {
		live.session, live.since = nil, c.now()
		c.log.Warn("node disconnected", "node", name)
		c.kick()
	}
}

func (c *cluster) delta(name string, mine *session, said *api.Delta) error {
	if err := checkDelta(said); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	live := c.live[name]
	if live == nil || live.session != mine {
		return nil
	}
	if len(said.Containers)+len(said.Gone) > 0 {
		c.kick() // free memory and bandwidths are looked at soon enough: each node tells them often
	}
	live.change(said)
	if err := live.within(c.bounds.node); err != nil {
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	return nil
}

// nodeOf returns the name of the node that calls, which has joined.
func (c *cluster) nodeOf(ctx context.Context) (string, error) {
	shown, err := shownBy(ctx)
	if err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	peer, err := authorities(c.state.Authorities).verify(shown, c.now())
	if err != nil {
		return "", err
	}
	known, found := c.state.Nodes[peer.Name]
	if !found || known.Number != peer.Number {
		return "", fmt.Errorf("node %s (%d) has not joined this controller: use godwit node connect",
			peer.Name,
			peer.Number)
	}
	return peer.Name, nil
}

// newNode is the record of a node that joins; one that is known keeps its labels and its state.
func (c *cluster) newNode(name string, number int) store.Node {
	known, found := c.state.Nodes[name]
	if !found || known.Number != number {
		known = store.Node{Name: name, State: store.Active, Joined: c.now().UTC()}
	}
	known.Number = number
	return known
}
