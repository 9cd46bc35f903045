package cluster

import (
	"fmt"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/compat"
)

// heardVersion is what a node says that it runs.
type heardVersion struct {
	program  string
	protocol compat.Range
}

func ourProtocol() *api.ProtocolRange {
	ours := compat.Ours()
	return &api.ProtocolRange{Oldest: uint32(ours.Oldest), Newest: uint32(ours.Newest)}
}

// speaks is what a node says that it speaks; the zero value if it says nothing.
func speaks(said *api.ProtocolRange) compat.Range {
	return compat.Range{Oldest: int(said.GetOldest()), Newest: int(said.GetNewest())}
}

// Protocol is the version of the migration protocol that this node speaks with another one. A node that
// has not been heard yet is offered the newest, and refuses it by name if it does not speak it.
func (p *Peers) Protocol(name string) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.known[name]
	if known == nil || known.version == "" {
		return compat.Ours().Newest, nil
	}
	version, err := compat.Agree(compat.Ours(), known.protocol)
	if err != nil {
		return 0, fmt.Errorf("%w: node %s runs godwit %.40q, this node %s: %w",
			api.ErrRefused, name, known.version, p.version, err)
	}
	return version, nil
}
