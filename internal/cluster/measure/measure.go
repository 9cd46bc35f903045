// Package measure measures the links from this node to others with short bursts of data, and answers the
// bursts of other nodes. Package cluster keeps the results.
package measure

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

// Purpose of a data connection over which a link is measured.
const Purpose = "measure"

// timeout bounds the measurement of a link.
const timeout = 10 * time.Second

// Peers keep what is known of links. See cluster.Peers.
type Peers interface {
	NoteLink(node string, link stream.Link)
	NoteTransport(node string, transport stream.Transport)
	WayTo(node string) predict.Link
	Link(node string) (rtt time.Duration, bandwidth float64)
}

// Links are the links from this node, which can be measured.
type Links struct {
	id      *identity.Identity
	peers   Peers
	options stream.Options
}

// NewLinks measures links with connections of these options.
func NewLinks(id *identity.Identity, peers Peers, options stream.Options) *Links {
	// Nothing goes over these sessions but trains: that the peer refuses one shows soon enough.
	options.Eager = true
	return &Links{id: id, peers: peers, options: options}
}

// WayTo implements forecast.Links and controller.Links.
func (l *Links) WayTo(node string) predict.Link { return l.peers.WayTo(node) }

// Link implements controller.Links.
func (l *Links) Link(node string) (rtt time.Duration, bandwidth float64) { return l.peers.Link(node) }

// Measure implements forecast.Links and controller.Links. To see what a long and fast way carries takes
// more than to open a connection's window halfway, which is enough where something else follows; a slow way
// ends the measurement long before.
func (l *Links) Measure(ctx context.Context, node identity.Node) error {
	return l.measure(ctx, node, budget())
}

// MeasureBriefly implements forecast.Links: it measures before a mode is chosen, which must not take long. No
// more is sent than matters beside so much memory.
func (l *Links) MeasureBriefly(ctx context.Context, node identity.Node, memory int64) error {
	return l.measure(ctx, node, choiceBudget(memory))
}

// budget is what a measurement of a link takes at most.
func budget() stream.Budget { return stream.Budget{Bytes: 2 << 20, Duration: time.Second} }

// choiceBudget is the same before a mode is chosen.
func choiceBudget(memory int64) stream.Budget {
	const share, least = 8, 64 << 10
	most := budget()
	most.Bytes = int(min(max(memory/share, least), int64(most.Bytes)))
	return most
}

// measure finds the bandwidth to a node with a short burst.
func (l *Links) measure(ctx context.Context, node identity.Node, most stream.Budget) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := wire.Dial(ctx, l.id, node.Address, node.Name)
	if err != nil {
		return err
	}
	defer conn.Close()
	data, err := stream.Open(ctx, conn, stream.Hello{Purpose: Purpose}, l.options)
	if err != nil {
		return err
	}
	defer data.Close()
	guard.Go(func() error { // The reports of the peer arrive while it reads; it ends with the session.
		_, err := data.Next()
		return err
	})
	link, err := data.Warm(ctx, most)
	if err != nil {
		return err
	}
	l.peers.NoteLink(node.Name, link)
	if transport, known := data.Transport(); known {
		l.peers.NoteTransport(node.Name, transport)
	}
	return nil
}

// Answer serves a connection over which a peer measures the link, for no longer than that can take.
func Answer(ctx context.Context, session *stream.Session) error {
	limit := time.AfterFunc(2*timeout, func() { _ = session.Close() })
	defer limit.Stop()
	_, err := session.Next() // probes are answered while it reads
	if errors.Is(err, io.EOF) || errors.Is(err, stream.ErrTruncated) || ctx.Err() != nil {
		return nil // who measures just ends it
	}
	return err
}
