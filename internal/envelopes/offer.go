package envelopes

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/compat"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/layers"
)

// CheckProtocol refuses the offer of a node whose protocol is not spoken here.
func CheckProtocol(from string, offer *api.Offer) error {
	theirs := int(offer.Protocol)
	if _, err := compat.Agree(compat.Ours(), compat.Range{Oldest: theirs, Newest: theirs}); err != nil {
		return fmt.Errorf("%w: offer of node %s: %w", api.ErrInvalid, from, err)
	}
	return nil
}

// CheckSizes refuses what nobody has, so that later sums of sizes cannot overflow.
func CheckSizes(offer *api.Offer) error {
	const most = 1 << 50
	if offer.MemoryBytes < 0 || offer.TreesBytes < 0 || offer.MemoryBytes > most || offer.TreesBytes > most {
		return fmt.Errorf("%w: sizes are from 0 to %d bytes", api.ErrInvalid, int64(most))
	}
	return layers.Check(offer.Layers)
}

// Definition reads the definition of the container that is offered. Its ID and name are checked.
func Definition(offer *api.Offer) (engine.Definition, error) {
	var definition engine.Definition
	if err := json.Unmarshal(offer.DefinitionJson, &definition); err != nil {
		return definition, fmt.Errorf("%w: definition of the container: %w", api.ErrInvalid, err)
	}
	if err := errors.Join(migration.CheckContainerID(definition.ID),
		migration.CheckName(definition.Name)); err != nil {
		return definition, fmt.Errorf("%w: %w", api.ErrInvalid, err)
	}
	definition.Passed = definition.Passed[:min(len(definition.Passed), engine.MaxPassedCalls)]
	return definition, nil
}

// MemoryLimit bounds the memory that a peer can fill: what it announced, and half as much for what
// CRIU writes beside pages and for what was allocated since. The queues of a few busy connections
// can grow by this much at any time.
func MemoryLimit(offer *api.Offer) int64 {
	const least = 256 << 20
	return offer.MemoryBytes + offer.MemoryBytes/2 + least
}

// CopiesAtTarget is how often memory is at the target while the processes are made: as they will have it, and
// in the files from which CRIU makes it. At the source it is in files beside the frozen processes.
const CopiesAtTarget = 2

// MemoryCopies is how often the memory of a container that is offered has to have room at the target.
func MemoryCopies(offer *api.Offer) int64 {
	if offer.Mode == string(migration.Restart) {
		return 1 // it does not come, and what is started may take as much
	}
	return CopiesAtTarget
}
