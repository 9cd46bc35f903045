package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/node/rpc"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

func (s *localService) Token(_ context.Context, request *api.TokenRequest) (*api.TokenReply, error) {
	authority, err := s.agent.id.Authority()
	if err != nil {
		return nil, rpc.Error(fmt.Errorf("%w; run this on the node that was initialised first, or one that "+
			"was promoted%s", err,
			s.agent.members.Elsewhere()))
	}
	token, err := authority.IssueToken(time.Duration(request.TtlSeconds*float64(time.Second)), request.Node)
	if err != nil {
		return nil, rpc.Error(err)
	}
	return &api.TokenReply{Token: token.String(), Address: s.agent.self.Address}, nil
}

// Nodes says hello to every node now, so that the answer is about now.
func (s *localService) Nodes(ctx context.Context, request *api.NodesRequest) (*api.NodesReply, error) {
	var all sync.WaitGroup
	for _, node := range s.agent.peers.Others() {
		all.Go(s.agent.guarded(func() {
			if err := s.agent.peers.Hello(ctx, node); err != nil || !request.Measure {
				return // What went wrong is in the answer.
			}
			if err := s.agent.measure(ctx, node, measureBudget()); err != nil {
				s.agent.log.Info("bandwidth not measured", "node", node.Name, "error", err)
			}
		}))
	}
	all.Wait()
	nodes := s.agent.peers.Describe()
	for _, node := range nodes {
		s.agent.describeOverlay(node)
	}
	return &api.NodesReply{Nodes: nodes}, nil
}

// measureTimeout bounds the measurement of a link.
const measureTimeout = 10 * time.Second

// measureBudget is what a measurement of a link takes at most. To see what a long and fast way
// carries takes more than to open a connection's window halfway, which is enough where something
// else follows; a slow one ends it long before.
func measureBudget() stream.Budget { return stream.Budget{Bytes: 2 << 20, Duration: time.Second} }

// choiceBudget is the same before a mode is chosen, which must not take long: no more is sent than
// matters beside so much memory.
func choiceBudget(memory int64) stream.Budget {
	const share, least = 8, 64 << 10
	budget := measureBudget()
	budget.Bytes = int(min(max(memory/share, least), int64(budget.Bytes)))
	return budget
}

// measureOptions are those of a session over which nothing goes but trains: that the peer refuses
// it shows soon enough.
func (a *Agent) measureOptions() stream.Options {
	options := a.streamOptions()
	options.Eager = true
	return options
}

// measure finds the bandwidth to a node with a short burst.
func (a *Agent) measure(ctx context.Context, node identity.Node, budget stream.Budget) error {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	conn, err := wire.Dial(ctx, a.id, node.Address, node.Name)
	if err != nil {
		return err
	}
	defer conn.Close()
	data, err := stream.Open(ctx, conn, stream.Hello{Purpose: purposeMeasure}, a.measureOptions())
	if err != nil {
		return err
	}
	defer data.Close()
	guard.Go(func() error { // The reports of the peer arrive while it reads; it ends with the session.
		_, err := data.Next()
		return err
	})
	link, err := data.Warm(ctx, budget)
	if err != nil {
		return err
	}
	a.peers.NoteLink(node.Name, link)
	if transport, known := data.Transport(); known {
		a.peers.NoteTransport(node.Name, transport)
	}
	return nil
}
