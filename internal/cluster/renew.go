package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
)

// A failed renewal is retried at growing intervals, up to renewEvery: two weeks are left when it begins.
// During a rollover of the authority only seconds may be left, and the interval is rolloverEvery.
const (
	renewEvery    = 2 * time.Hour
	rolloverEvery = 10 * time.Second
)

// firstNumber is the node that was initialised first. It has the cluster's authority, unless it was demoted
// since.
const firstNumber = 1

var errNoAuthority = errors.New("no node is known that has the certificate authority")

// RenewCertificate keeps this node's certificate valid until ctx ends, and advances a rollover of the
// authority.
func (m *Members) RenewCertificate(ctx context.Context) {
	ticker := time.NewTicker(HelloEvery)
	defer ticker.Stop()
	pause, next := HelloEvery, time.Now()
	for {
		if now := time.Now(); m.peers.id.NeedsRenewal(now) && !now.Before(next) {
			pause = m.tryRenewal(ctx, pause)
			next = now.Add(pause)
		}
		if err := m.advanceRollover(ctx, time.Now()); err != nil {
			m.peers.log.Error("cannot end the rollover of the authority; the agent tries again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// tryRenewal renews the certificate, and returns how long to wait before the next attempt.
func (m *Members) tryRenewal(ctx context.Context, pause time.Duration) time.Duration {
	if err := m.renewNow(ctx); err != nil {
		pause = min(2*pause, renewEvery)
		if !m.peers.id.Current() {
			pause = min(pause, rolloverEvery)
		}
		m.peers.log.Error("cannot renew this node's certificate; the agent tries again",
			"valid_until", m.peers.id.Expires(), "after", pause, "error", err)
		return pause
	}
	m.peers.log.Info("certificate of this node renewed", "valid_until", m.peers.id.Expires())
	return HelloEvery
}

// renewNow asks each node with the authority until one has signed.
func (m *Members) renewNow(ctx context.Context) error {
	if m.peers.id.HasAuthority() {
		if _, err := m.peers.id.Renew(ctx, nil); err != nil {
			return err
		}
		return m.peers.sign()
	}
	var failed []error
	for _, node := range m.peers.authorities() {
		err := m.renewAt(ctx, node)
		if err == nil {
			return m.peers.sign()
		}
		failed = append(failed, err)
	}
	if len(failed) == 0 {
		return errNoAuthority
	}
	return errors.Join(failed...)
}

func (m *Members) renewAt(ctx context.Context, node identity.Node) error {
	conn, err := wire.DialRenew(ctx, m.peers.id, node.Address, node.Name)
	if err != nil {
		return err
	}
	defer conn.Close()
	nodes, err := m.peers.id.Renew(ctx, conn)
	if err == nil {
		m.peers.Learn(m.peers.believable(nodes))
	}
	return err
}
