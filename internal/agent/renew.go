package agent

import (
	"context"
	"errors"
	"time"

	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
)

// A renewal that failed is tried again ever later, up to renewEvery: there are two weeks left when it begins.
// During a rollover of the authority there may be seconds, and it is tried every rolloverEvery.
const (
	renewEvery    = 2 * time.Hour
	rolloverEvery = 10 * time.Second
)

// firstNumber is the node that was initialised first. It has the cluster's authority, unless it was demoted
// since.
const firstNumber = 1

var errNoAuthority = errors.New("no node is known that has the certificate authority")

// renewCertificate keeps this node's certificate valid until ctx ends, and goes on with a rollover of the
// authority.
func (a *Agent) renewCertificate(ctx context.Context) {
	ticker := time.NewTicker(helloEvery)
	defer ticker.Stop()
	pause, next := helloEvery, time.Now()
	for {
		if now := time.Now(); a.id.NeedsRenewal(now) && !now.Before(next) {
			pause = a.tryRenewal(ctx, pause)
			next = now.Add(pause)
		}
		if err := a.advanceRollover(ctx, time.Now()); err != nil {
			a.log.Error("cannot end the rollover of the authority; the agent tries again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// tryRenewal renews the certificate, and returns how long to wait before it is tried again.
func (a *Agent) tryRenewal(ctx context.Context, pause time.Duration) time.Duration {
	if err := a.renewNow(ctx); err != nil {
		pause = min(2*pause, renewEvery)
		if !a.id.Current() {
			pause = min(pause, rolloverEvery)
		}
		a.log.Error("cannot renew this node's certificate; the agent tries again",
			"valid_until", a.id.Expires(), "after", pause, "error", err)
		return pause
	}
	a.log.Info("certificate of this node renewed", "valid_until", a.id.Expires())
	return helloEvery
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
