package agent

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/patience"
	"github.com/godwit/godwit/internal/wire/identity"
)

// Before a container that has ended is started here, the other members of the cluster are asked whether
// they have it.

// errElsewhere says that a container is at another node, or that this cannot be ruled out.
var errElsewhere = fmt.Errorf("%w: it may be on another node", engine.ErrBusy)

// errThere is an errElsewhere of a node that has the container, or that answers and yet cannot say
// whether it has it: no user may overrule a node that can be asked.
var errThere = fmt.Errorf("%w", errElsewhere)

// elsewhere refuses to start a container that another member of the cluster has. If this agent has not
// seen it run here, members that cannot say count as if they had it. They are asked twice: between two
// answers the container may have moved from a node that was not asked yet to one that was.
func (r *restarts) elsewhere(ctx context.Context, d engine.Definition, seen bool) error {
	err := r.askAll(ctx, d, seen)
	if errors.Is(err, errThere) {
		return err
	}
	if again := r.askAll(ctx, d, seen); again != nil {
		return again
	}
	return err
}

func (r *restarts) askAll(ctx context.Context, d engine.Definition, seen bool) error {
	nodes := r.others()
	answers := make(chan error, len(nodes))
	for _, node := range nodes {
		go r.agent.guarded(func() {
			err := fmt.Errorf("%w: node %s has not answered", errElsewhere, node.Name)
			defer func() { answers <- err }() // also after a panic
			err = r.askOne(ctx, node, d, seen)
		})()
	}
	var err error
	for range nodes {
		err = errors.Join(err, <-answers)
	}
	return err
}

func (r *restarts) askOne(ctx context.Context, node identity.Node, d engine.Definition, seen bool) error {
	err := errors.New("it cannot be reached")
	state := ""
	if r.reaches(node.Name) {
		state, err = r.presence(ctx, node, d.ID)
	}
	switch {
	case err == nil && state != "":
		return fmt.Errorf("%w: node %s has container %s (%.100q): remove it there, or here (godwit rm)",
			errThere, node.Name, d.Name, state)
	case err == nil || seen:
		return nil
	case refusedToSay(err):
		return fmt.Errorf("%w: node %s answers, but cannot say whether it has container %s: %s: repair "+
			"that there first", errThere, node.Name, d.Name, plain(err))
	}
	return fmt.Errorf("%w: node %s cannot say whether it has container %s: %s",
		errElsewhere, node.Name, d.Name, plain(err))
}

// refusedToSay tells whether a node has answered with an error, and may have the container. One that has
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

// askPresence asks a node whether it has a container.
func (a *Agent) askPresence(ctx context.Context, node identity.Node, container string) (state string,
	err error) {
	client, ctx, cancel, err := a.peers.Asking(ctx, node)
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

// holding tells in words what this node has of a container of the embedded engine; empty: nothing. A
// migration is looked for first: what comes or goes is known to it for longer than to the engine.
//
// An arrival that never runs counts as nothing, also while its removal fails: the migration has told
// the source the same. The engine is asked before the journals that cannot be used, because the
// container of such a journal may run here (errPutBack). A journal that cannot be used and does not
// name its container leaves the answer to the engine: nothing of a container that comes can run
// before the engine has it, or of a container that leaves after the engine has nothing of it.
func (a *Agent) holding(ctx context.Context, container string) (string, error) {
	never := false
	if move := a.moves.of(container); move != nil {
		if never = move.neverRuns(); !never {
			return "migration " + move.tracker.Spec.ID + " of it is under way", nil
		}
	}
	one, err := a.embedded.Inspect(ctx, container)
	switch {
	case err == nil && (!never || one.State != engine.Arriving):
		return "it is " + string(one.State), nil
	case err != nil && !errors.Is(err, engine.ErrNotFound):
		return "", err
	}
	if id := a.moves.unreadAmong(container); id != "" {
		return "", status.Errorf(codes.Unavailable,
			`the journal of the container's migration %s cannot be used: see "godwit migration ls" there`, id)
	}
	return "", nil
}
