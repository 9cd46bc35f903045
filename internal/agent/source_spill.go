package agent

import (
	"context"
	"fmt"
	"path/filepath"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/memory/postcopy"
	"github.com/godwit/godwit/internal/migration"
)

// spillName is the file in the directory of a migration.
const spillName = "spill"

func (a *Agent) spillPath(id string) string { return filepath.Join(a.moves.Dir(id), spillName) }

// exchangeSpillKey gives the target a key to keep, if there is one, and returns the one that it keeps.
func (s *source) exchangeSpillKey(ctx context.Context, key []byte) (
	kept postcopy.SpillKey, known bool, err error) {
	var reply *api.SpillReply
	err = s.control.Ask(ctx, func(ctx context.Context, peer api.PeerClient) (err error) {
		reply, err = peer.Spill(ctx, &api.SpillRequest{Migration: s.id(), Key: key})
		return err
	})
	if status.Code(err) == codes.Unimplemented { // an older version runs there now, and the key is gone
		return kept, false, nil
	}
	if err != nil {
		return kept, false, fmt.Errorf("key of the pages on the disk: %s: %s", s.target.Name, plain(err))
	}
	return kept, copy(kept[:], reply.Key) == len(kept), nil
}

// spillBytes is what pages that stay here may take on the disk; 0: they are not to be written there, or none
// stays.
func spillBytes(mode migration.Mode, settings migration.Settings, memoryBytes int64) int64 {
	if !settings.Spill || mode == migration.Cold || mode == migration.Restart {
		return 0
	}
	return postcopy.SpillBytes(memoryBytes)
}

// examineSpill looks whether there is room for so much. Nothing is asked of the disk if that is nothing.
func (a *Agent) examineSpill(needed int64) []engine.Problem {
	if needed == 0 {
		return nil
	}
	err := files.CheckSpace(a.config.StateDir, needed)
	if err == nil {
		return nil
	}
	return []engine.Problem{{
		What:   "disk of " + a.self.Name,
		Why:    "--spill needs room for the pages that follow: " + err.Error(),
		Remedy: "free space there, or move the container without --spill",
	}}
}

// keepsNoSpillKey is what stands against a target that cannot keep a key; nil: it can, or need not.
func keepsNoSpillKey(node string, needed int64, reservation *api.Reservation) *migration.Problem {
	if needed == 0 || reservation.GetKeepsSpillKey() {
		return nil
	}
	return &migration.Problem{
		What:   "--spill",
		Why:    node + " runs a version of godwit that does not keep the key of pages on this node's disk",
		Remedy: "upgrade " + node + ", or move the container without --spill",
	}
}

// examineSpillKey refuses a target that cannot keep the key, before anything moves.
func (s *source) examineSpillKey() error {
	s.mu.Lock()
	reservation := s.reservation
	s.mu.Unlock()
	needed := spillBytes(s.move.tracker.Spec.Mode, s.settings.Get(), s.offered.MemoryBytes)
	if problem := keepsNoSpillKey(s.target.Name, needed, reservation); problem != nil {
		return &migration.Refusal{Problems: []migration.Problem{*problem}}
	}
	return nil
}
