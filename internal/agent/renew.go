package agent

import (
	"context"
	"errors"
	"time"

	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
)

// renewEvery is how often this node looks whether its certificate has to be renewed. There are two weeks left when it
// has.
const renewEvery = 2 * time.Hour

// firstNumber is the node that was initialised first. It has the cluster's authority, unless it was demoted since.
const firstNumber = 1

var errNoAuthority = errors.New("no node is known that has the certificate authority")

// renewCertificate keeps this node's certificate valid until ctx ends.
func (a *Agent) renewCertificate(ctx context.Context) {
	ticker := time.NewTicker(renewEvery)
	defer ticker.Stop()
	for {
		if a.id.NeedsRenewal(time.Now()) {
			if err := a.renewNow(ctx); err != nil {
				a.log.Error("certificate of this node not renewed; it is tried again",
					"valid_until", a.id.Expires(), "every", renewEvery, "error", err)
			} else {
				a.log.Info("certificate of this node renewed", "valid_until", a.id.Expires())
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// renewNow asks each node with the authority until one has signed.
func (a *Agent) renewNow(ctx context.Context) error {
	if a.id.HasAuthority() {
		if _, err := a.id.Renew(ctx, nil); err != nil {
			return err
		}
		return a.peers.sign()
	}
	var failed []error
	for _, node := range a.peers.authorities() {
		err := a.renewAt(ctx, node)
		if err == nil {
			return a.peers.sign()
		}
		failed = append(failed, err)
	}
	if len(failed) == 0 {
		return errNoAuthority
	}
	return errors.Join(failed...)
}

func (a *Agent) renewAt(ctx context.Context, node identity.Node) error {
	conn, err := wire.DialRenew(ctx, a.id, node.Address, node.Name)
	if err != nil {
		return err
	}
	defer conn.Close()
	nodes, err := a.id.Renew(ctx, conn)
	if err == nil {
		a.peers.learn(a.peers.believable(nodes))
	}
	return err
}
