package agent

import (
	"context"
	"errors"
	"time"

	"github.com/godwit/godwit/internal/wire"
)

// renewEvery is how often this node looks whether its certificate has to be renewed. There are weeks left when it has.
const renewEvery = 12 * time.Hour

// caNumber is the node that was initialised first: it holds the cluster's certificate authority.
const caNumber = 1

var errNoAuthority = errors.New("the node that holds the certificate authority is not known: it is number 1, the one that was " +
	"initialised first")

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

func (a *Agent) renewNow(ctx context.Context) error {
	if a.self.Number == caNumber {
		_, err := a.id.Renew(ctx, nil)
		return err
	}
	name, known := a.peers.byNumber(caNumber)
	if !known {
		return errNoAuthority
	}
	node, err := a.peers.find(name)
	if err != nil {
		return err
	}
	conn, err := wire.DialRenew(ctx, a.id, node.Address, node.Name)
	if err != nil {
		return err
	}
	defer conn.Close()
	nodes, err := a.id.Renew(ctx, conn)
	if err == nil {
		a.peers.learn(nodes)
	}
	return err
}
