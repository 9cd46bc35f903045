package cluster

import (
	"slices"

	"github.com/godwit/godwit/internal/migration"
)

// noteRefused records the modes that a node refuses. It ignores modes that only a later release knows.
func (p *Peers) noteRefused(name string, said []string) {
	refused := slices.DeleteFunc(migration.Modes(), func(mode migration.Mode) bool {
		return !slices.Contains(said, string(mode))
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.known[name]; known != nil {
		known.refused = refused
	}
}

// RefusedBy returns the modes that a node refuses.
func (p *Peers) RefusedBy(name string) []migration.Mode {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.known[name]; known != nil {
		return known.refused
	}
	return nil
}
