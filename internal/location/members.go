package location

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/patience"
	"github.com/godwit/godwit/internal/wire/identity"
)

// ErrElsewhere says that a container is at another node, or that this cannot be ruled out.
var ErrElsewhere = fmt.Errorf("%w: it may be on another node", engine.ErrBusy)

// ErrThere is an ErrElsewhere of a node that has the container, or that answers and yet cannot say
// whether it has it: no user may overrule a node that can be asked.
var ErrThere = fmt.Errorf("%w", ErrElsewhere)

// Members are the other members of the cluster, which are asked whether they have a container that has ended
// before it is started here.
type Members struct {
	Others  func() []identity.Node
	Reaches func(node string) bool
	// Presence asks one of them for a container; empty: it does not have it.
	Presence func(ctx context.Context, node identity.Node, container string) (state string, err error)
	Log      *slog.Logger
}

// Unreached are the members that cannot be asked.
func (m Members) Unreached() (missing []string) {
	for _, node := range m.Others() {
		if !m.Reaches(node.Name) {
			missing = append(missing, node.Name)
		}
	}
	return missing
}

// Elsewhere refuses to start a container that another member of the cluster has. If this agent has not
// seen it run here, members that cannot say count as if they had it. They are asked twice: between two
// answers the container may have moved from a node that was not asked yet to one that was.
func (m Members) Elsewhere(ctx context.Context, d engine.Definition, seen bool) error {
	err := m.askAll(ctx, d, seen)
	if errors.Is(err, ErrThere) {
		return err
	}
	if again := m.askAll(ctx, d, seen); again != nil {
		return again
	}
	return err
}

func (m Members) askAll(ctx context.Context, d engine.Definition, seen bool) error {
	nodes := m.Others()
	answers := make(chan error, len(nodes))
	for _, node := range nodes {
		go guard.Logged(m.Log, func() {
			err := fmt.Errorf("%w: node %s has not answered", ErrElsewhere, node.Name)
			defer func() { answers <- err }() // also after a panic
			err = m.askOne(ctx, node, d, seen)
		})()
	}
	var err error
	for range nodes {
		err = errors.Join(err, <-answers)
	}
	return err
}

func (m Members) askOne(ctx context.Context, node identity.Node, d engine.Definition, seen bool) error {
	err := errors.New("it cannot be reached")
	state := ""
	if m.Reaches(node.Name) {
		state, err = m.Presence(ctx, node, d.ID)
	}
	switch {
	case err == nil && state != "":
		return fmt.Errorf("%w: node %s has container %s (%.100q): remove it there, or here (godwit rm)",
			ErrThere, node.Name, d.Name, state)
	case err == nil || seen:
		return nil
	case refusedToSay(err):
		return fmt.Errorf("%w: node %s answers, but cannot say whether it has container %s: %s: repair "+
			"that there first", ErrThere, node.Name, d.Name, api.Plain(err))
	}
	return fmt.Errorf("%w: node %s cannot say whether it has container %s: %s",
		ErrElsewhere, node.Name, d.Name, api.Plain(err))
}

// refusedToSay reports whether a node has answered with an error, and may have the container. One that has
// nothing of it but a journal that cannot be used answers with codes.Unavailable.
func refusedToSay(err error) bool {
	s, ok := status.FromError(err)
	if !ok {
		return false
	}
	switch s.Code() {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unimplemented:
		return false
	default:
		return true
	}
}

// Connect connects to a node for a question that ends when the node shows no sign of work. See cluster.Peers.
type Connect func(ctx context.Context, node identity.Node) (*grpc.ClientConn, context.Context,
	context.CancelFunc, error)

// Presence asks a node whether it has a container.
func (connect Connect) Presence(ctx context.Context, node identity.Node, container string) (state string,
	err error) {
	client, ctx, cancel, err := connect(ctx, node)
	if err != nil {
		return "", err
	}
	defer cancel()
	reply, err := api.NewPeerClient(client).Presence(ctx, &api.PresenceRequest{Container: container})
	if status.Code(err) == codes.Unimplemented {
		return "", errors.New("it runs an older version of godwit that cannot answer the question: upgrade " +
			"it")
	}
	return reply.GetState(), patience.Explain(ctx, err)
}
