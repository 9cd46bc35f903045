package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/shared"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/migration"
)

// describe makes the offer, when it is decided what becomes of the volumes.
func (s *source) describe(ctx context.Context) error {
	if err := s.chooseVolumes(ctx); err != nil {
		return err
	}
	offer, err := s.agent.makeOffer(ctx, s.move.tracker.Spec, s.moving(), s.volumes.moved)
	if err != nil {
		return err
	}
	s.offered = offer
	s.move.tracker.Volumes(s.volumes.moved)
	return nil
}

// chooseVolumes decides what becomes of the volumes, and has it journalled from now on: whoever
// removes the copy here must know what does not go with it.
func (s *source) chooseVolumes(ctx context.Context) error {
	chosen, err := s.agent.chooseVolumes(ctx, s.move.tracker.Spec.Mode, s.definition, s.target,
		s.settings.Get().Volumes)
	if err != nil {
		return err
	}
	if err := refuse(chosen.problems); err != nil {
		return err
	}
	s.mu.Lock()
	s.volumes = chosen
	s.mu.Unlock()
	s.move.describe(s.moving())
	return nil
}

// moving is the definition of the container with the volumes that stay marked.
func (s *source) moving() engine.Definition {
	s.mu.Lock()
	defer s.mu.Unlock()
	definition := s.definition
	definition.Volumes = s.volumes.volumes
	return definition
}

// proveAgain wants both nodes to mount still what they mounted when it was decided what becomes of
// the volumes: what was unmounted or replaced since would leave the container without what it has
// written. It is called right before the freeze, which it does not make longer.
func (s *source) proveAgain(ctx context.Context) error {
	s.mu.Lock()
	chosen := s.volumes
	s.mu.Unlock()
	var asked []engine.Volume
	for i, v := range chosen.volumes {
		if i < len(chosen.moved) && chosen.moved[i].Way == migration.VolumeShared {
			v.Stays = false
			asked = append(asked, v)
		}
	}
	proofs, err := s.agent.proofs.Prove(ctx, s.target, asked)
	if err != nil {
		return err
	}
	var problems []engine.Problem
	for i, found := range proofs {
		if !found.Shared {
			problems = append(problems, engine.Problem{
				What: asked[i].String(), Why: fmt.Sprintf("%s mounted the same storage when the migration "+
					"began, but no longer does: %s", s.target.Name, found.Why),
				Remedy: "mount it at this place on both nodes, and try again",
			})
		}
	}
	return refuse(problems)
}

// stay are the keys of the volumes that stay.
func (s *source) stay() []string { return stayingKeys(s.moving()) }

func stayingKeys(moving engine.Definition) []string {
	var keys []string
	for _, v := range moving.Volumes {
		if v.Stays {
			keys = append(keys, v.Key())
		}
	}
	return keys
}

// trees are the directories that move.
func (s *source) trees(ctx context.Context) ([]files.Tree, error) {
	return s.agent.treesOf(ctx, s.moving())
}

// treesOf are the directories of a container that move, in the order of its engine.
func (a *Agent) treesOf(ctx context.Context, moving engine.Definition) ([]files.Tree, error) {
	trees, err := a.engines.EngineFor(moving).Trees(ctx, moving.ID)
	if err != nil {
		return nil, err
	}
	return treesThatMove(trees, moving.Volumes), nil
}

func treesThatMove(trees []files.Tree, volumes []engine.Volume) []files.Tree {
	return slices.DeleteFunc(trees, func(tree files.Tree) bool {
		return slices.ContainsFunc(volumes,
			func(v engine.Volume) bool { return v.Stays && isTreeOf(tree, v) })
	})
}

// isTreeOf reports whether a tree is a volume. Others may have its name: a container's shared memory
// has one, too.
func isTreeOf(tree files.Tree, v engine.Volume) bool {
	kind := files.VolumeOf
	if v.Sort() == engine.Tmpfs {
		kind = files.Memory
	}
	return tree.Kind == kind && tree.Name == v.Key()
}

// staying are the places of volumes that stay and may be on storage of both nodes. A tmpfs is not.
func (a *Agent) staying(moving engine.Definition) (volumes []engine.Volume, places []string, err error) {
	for _, v := range moving.Volumes {
		if !v.Stays || v.Sort() == engine.Tmpfs {
			continue
		}
		place, err := a.engines.VolumePath(v)
		if err != nil {
			return nil, nil, err
		}
		volumes, places = append(volumes, v), append(places, place)
	}
	return volumes, places, nil
}

// handOverPatience bounds how long a file server may take to write back the last changes, while the
// container is frozen.
const handOverPatience = 30 * time.Second

// handOverShared is releaseShared in the freeze: a server that does not answer must not keep the
// container frozen.
func (s *source) handOverShared(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, handOverPatience,
		fmt.Errorf("a file server has not answered for %s", handOverPatience))
	defer cancel()
	return s.releaseShared(ctx)
}

// patiently waits for what may never end, because it is the kernel that waits for a file server, as
// long as somebody wants it.
func patiently(ctx context.Context, do func() error) error {
	select {
	case err := <-guard.Go(do):
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// releaseShared hands the volumes that stay to the target: when it returns, all that the container
// has written is where the target finds it, and nothing of it is written later. It is called before
// the freeze, so that little is left, and in it.
func (s *source) releaseShared(ctx context.Context) error {
	moving := s.moving()
	_, places, err := s.agent.staying(moving)
	if err != nil || len(places) == 0 {
		return err
	}
	var pids []int
	if !s.stoppedNow() {
		if pids, err = s.agent.engines.EngineFor(moving).Processes(ctx, moving.ID); err != nil {
			return err
		}
	}
	for _, place := range places {
		if err := patiently(ctx, func() error { return shared.Release(ctx, place, pids) }); err != nil {
			return fmt.Errorf("hand over shared storage at %s: %w", place, err)
		}
	}
	if s.move.tracker.Spec.Mode == migration.Restart {
		return nil // the locks end with the processes
	}
	return s.checkLocks(ctx)
}

// checkLocks refuses locks that the target could not take, which may have come since they were
// looked for first.
func (s *source) checkLocks(ctx context.Context) error {
	s.mu.Lock()
	chosen := s.volumes
	s.mu.Unlock()
	for i, v := range chosen.volumes {
		if i >= len(chosen.locked) || !chosen.locked[i] {
			continue
		}
		place, err := s.agent.engines.VolumePath(v)
		if err != nil {
			return err
		}
		var problems []engine.Problem
		err = patiently(ctx, func() (err error) {
			problems, err = s.agent.examineLocks(ctx, s.definition, v, place, true)
			return err
		})
		if err == nil {
			err = refuse(problems)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// forgetShared drops what is cached here of volumes that are the target's now.
func (s *source) forgetShared(ctx context.Context) { s.agent.forgetShared(ctx, s.moving()) }

// forgetPatience bounds how long a file server may take until this node looks anew at what is on it.
const forgetPatience = 10 * time.Second

// forgetShared makes this node look anew at volumes that another one has written to, or will. Where
// that does not work files are looked at anew when they are opened. A server that does not answer
// keeps no migration from its end.
func (a *Agent) forgetShared(ctx context.Context, moving engine.Definition) {
	ctx, cancel := context.WithTimeout(ctx, forgetPatience)
	defer cancel()
	_, places, err := a.staying(moving)
	for _, place := range places {
		if err == nil {
			err = patiently(ctx, func() error { return shared.Take(place) })
		}
	}
	if err != nil {
		a.log.Warn("cannot refresh shared storage", "container", moving.Name, "error", err)
	}
}
