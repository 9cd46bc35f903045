package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// spared records the OOM settings that frozen processes had before Protect, and whether they have run since
// they were frozen.
type spared struct {
	Thawed    bool            `json:"thawed,omitempty"`
	Processes []sparedProcess `json:"processes"`
	// the group whose attribute was set for systemd-oomd; "" if none was
	Group string `json:"group,omitempty"`
}

type sparedProcess struct {
	Identity

	Adjustment int `json:"oom_score_adj"`
}

// Protect keeps a group frozen, passes its processes that nobody holds yet to hold, and makes OOM killers
// take its processes last. It saves their previous settings in the record at path, for Unprotect. A group
// that somebody has thawed is frozen again. If not all of its processes were held, it has run: then Protect
// fails with engine.ErrThawed, now and until Unprotect. An engine calls Protect while the engine cannot
// itself thaw or destroy the container. held is as in engine.Protector.
func Protect(
	ctx context.Context, group *cgroup.Cgroup, path string, hold func(pids []int) error, held func(),
) error {
	pids, err := group.Procs()
	if err != nil || len(pids) == 0 {
		return err
	}
	var was spared
	if err := durable.Load(path, &was); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	exposed, err := was.holdAll(ctx, group, path, pids, hold)
	if held != nil && err == nil && exposed == nil && !was.Thawed {
		held()
	}
	if err == nil {
		exposed = errors.Join(exposed, was.spare(group, path, pids))
	}
	switch {
	case was.Thawed:
		return errors.Join(engine.ErrThawed, err, exposed)
	case err == nil && exposed != nil:
		return fmt.Errorf("%w: %w", engine.ErrExposed, exposed)
	}
	return err
}

// holdAll holds the processes that are not held yet. It checks before and after that whether somebody has
// thawed them: that can happen in between, and no longer matters afterwards.
func (s *spared) holdAll(
	ctx context.Context, group *cgroup.Cgroup, path string, pids []int, hold func(pids []int) error,
) (unheld, err error) {
	free := slices.DeleteFunc(slices.Clone(pids), func(pid int) bool {
		return kernel.Seized(pid) || kernel.Ended(pid)
	})
	if len(free) == 0 {
		return nil, group.KeepFrozen(ctx)
	}
	if err := errors.Join(s.look(group, path), group.KeepFrozen(ctx)); err != nil {
		return nil, err
	}
	unheld, err = hold(free), s.look(group, path)
	if s.Thawed {
		err = errors.Join(err, group.KeepFrozen(ctx))
	}
	return unheld, err
}

// look records that processes have run that must not run. It does so before anybody freezes them again,
// because an agent may be killed between the two.
func (s *spared) look(group *cgroup.Cgroup, path string) error {
	told, err := group.ToldToFreeze()
	if err != nil || told || s.Thawed {
		return err
	}
	s.Thawed = true
	return durable.Save(path, s)
}

// spare saves the settings of the processes before it changes them, because an agent may be killed between
// the two.
func (s *spared) spare(group *cgroup.Cgroup, path string, pids []int) error {
	// the record has the original settings; an agent may have been killed before it changed them
	if len(s.Processes) > 0 {
		return lower(group, s.Group != "", pids)
	}
	for _, pid := range pids {
		one, err := sparing(pid)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		s.Processes = append(s.Processes, one)
	}
	avoids, err := group.MayAvoidOOMD()
	if err != nil {
		return err
	}
	if avoids {
		s.Group = group.FreezerDir()
	}
	if err := durable.Save(path, s); err != nil {
		return err
	}
	return lower(group, avoids, pids)
}

// lower makes the OOM killers take the processes last.
func lower(group *cgroup.Cgroup, avoid bool, pids []int) error {
	if avoid {
		if err := group.AvoidOOMD(); err != nil {
			return err
		}
	}
	for _, pid := range pids {
		if _, err := kernel.LowerOOM(pid); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func sparing(pid int) (sparedProcess, error) {
	identity, err := Identify(pid)
	if err != nil {
		return sparedProcess{}, err
	}
	adjustment, err := kernel.ReadOOM(pid)
	return sparedProcess{identity, adjustment}, err
}

// Unprotect restores the OOM settings of the processes. The processes themselves are released by
// ReleaseSeized, which Resume and Cgroup.Kill call. Unprotect is idempotent.
func Unprotect(path string) error {
	var was spared
	err := durable.Load(path, &was)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the OOM score adjustments of the container's processes: %w", err)
	}
	for _, one := range was.Processes {
		if !one.Alive() {
			continue
		}
		if err := kernel.SetOOM(one.PID, one.Adjustment); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if was.Group != "" {
		group, err := cgroup.At(was.Group)
		if err == nil {
			err = group.EndAvoidOOMD()
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return durable.Remove(path)
}
