package containerd

import "github.com/godwit/godwit/internal/engine"

// Remedies of several obstacles.
const (
	without          = "start it without that"
	connectOtherwise = "start it by ctr run --cni or nerdctl run on one bridge with IPv4 addresses, or in " +
		"the node's network, or without one"
)

// problems collects obstacles to a move.
type problems []engine.Problem

func (p *problems) add(bad bool, what, why, remedy string) {
	if bad {
		*p = append(*p, engine.Problem{What: what, Why: why, Remedy: remedy})
	}
}
