package cluster

import (
	"context"
	"time"

	"github.com/godwit/godwit/internal/patience"
	"github.com/godwit/godwit/internal/wire/identity"
)

const (
	// probeFirst is when an unknown link is measured: not at once, because a migration may measure it
	// first.
	probeFirst = 15 * time.Second
	// ProbeEvery is after how long an unused link is measured again; probePerPeer is the minimum for each
	// node, so that many nodes together do not take more of a link. A probe stays within measureBudget.
	ProbeEvery   = 10 * time.Minute
	probePerPeer = time.Minute
)

// ProbeLinks measures links without a recent measurement, one after the other, and none while a migration
// of this node is under way.
func (p *Peers) ProbeLinks(
	ctx context.Context, busy func() bool, measure func(context.Context, identity.Node) error,
) {
	for patience.Until(ctx, time.Now().Add(probeFirst)) == nil {
		others := p.Others()
		every := max(ProbeEvery, time.Duration(len(others))*probePerPeer)
		for _, node := range others {
			if busy() || !p.Reaches(node.Name) || !p.wantsProbe(node.Name, every) {
				continue
			}
			if err := measure(ctx, node); err != nil {
				p.log.Debug("link not measured", "node", node.Name, "error", err)
			}
		}
	}
}
