package cluster

import (
	"fmt"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/compat"
)

// heardVersion is the version that a node reports.
type heardVersion struct {
	program  string
	protocol compat.Range
}

func ourProtocol() *api.ProtocolRange {
	ours := compat.Ours()
	return &api.ProtocolRange{Oldest: uint32(ours.Oldest), Newest: uint32(ours.Newest)}
}

// speaks returns the protocol range that a node reports; the zero value if it reports none.
func speaks(said *api.ProtocolRange) compat.Range {
	return compat.Range{Oldest: int(said.GetOldest()), Newest: int(said.GetNewest())}
}

// Protocol returns the version of the migration protocol that this node speaks with another one. A node
// that has not been heard yet is offered the newest version, and refuses it by name if it does not speak
// it.
func (p *Peers) Protocol(name string) (int, error) {
	said := p.reported(name)
	if said.version == "" {
		return compat.Ours().Newest, nil
	}
	version, err := compat.Agree(compat.Ours(), said.protocol)
	if err != nil {
		return 0, fmt.Errorf("%w: node %s runs godwit %.40q, this node %s: %w",
			api.ErrRefused, name, said.version, p.version, err)
	}
	return version, nil
}
