package agent

import (
	"context"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/control"
	"github.com/godwit/godwit/internal/migrate"
	"github.com/godwit/godwit/internal/patience"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
)

// lineTo is what a line to the other node of a migration needs.
func (a *Agent) lineTo(node identity.Node, m *migrate.Move) control.Config {
	return control.Config{
		Migration: m.Tracker.Spec.ID, Peer: node, Nodes: a.peers,
		Dial: func(node identity.Node) (*grpc.ClientConn, error) {
			return wire.DialControl(a.id, node.Address, node.Name, nil)
		},
		Silence: a.config.peerTimeout(), Timeout: a.config.callTimeout(),
		Answered: m.Deliver, Log: a.log,
	}
}

// plain is an error as another node is told it.
func plain(err error) string { return api.Plain(err) }

// waitFor waits for a channel to be closed.
func waitFor(ctx context.Context, closed <-chan struct{}) error {
	return patience.UntilClosed(ctx, closed)
}

// Errors that are the caller's wrap one of these. rpc.Error leaves their own words out.
var (
	errInvalid = api.ErrInvalid
	errRefused = api.ErrRefused
)
