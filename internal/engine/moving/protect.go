package moving

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/records"
	"github.com/godwit/godwit/internal/kernel"
)

// spared records the OOM settings that frozen processes had before Protect.
type spared struct {
	Processes []sparedProcess `json:"processes"`
	Group     string          `json:"group,omitempty"` // whose attribute was set for systemd-oomd; "" if none was
}

type sparedProcess struct {
	Identity

	Adjustment int `json:"oom_score_adj"`
}

// Protect passes the frozen processes of a group that nobody holds yet to hold, and makes them the last
// that OOM killers take. It saves their previous settings in the record at path, for Unprotect. A group
// that somebody has thawed while its processes were held is frozen again. Any other that was thawed has
// run, and Protect fails with engine.ErrThawed. An engine calls it while it cannot thaw or destroy the
// container itself.
func Protect(ctx context.Context, group *kernel.Cgroup, path string, hold func(pids []int) error) error {
	pids, err := group.Procs()
	if err != nil || len(pids) == 0 {
		return err
	}
	err = holdAll(ctx, group, pids, hold)
	if errors.Is(err, engine.ErrThawed) {
		return err
	}
	return errors.Join(err, spare(group, path, pids))
}

// holdAll has those processes held that are not yet. Whether somebody has thawed them is looked at before and
// after: in between it can happen, afterwards it does not matter any more.
func holdAll(ctx context.Context, group *kernel.Cgroup, pids []int, hold func(pids []int) error) error {
	free := slices.DeleteFunc(slices.Clone(pids), kernel.Seized)
	frozen, err := group.ToldToFreeze()
	if err != nil {
		return err
	}
	if !frozen && len(free) == len(pids) {
		return engine.ErrThawed
	}
	if err := group.KeepFrozen(ctx); err != nil || len(free) == 0 {
		return err
	}
	err = hold(free)
	still, failed := group.ToldToFreeze()
	if failed == nil && !(frozen && still) {
		failed = engine.ErrThawed
	}
	return errors.Join(err, failed)
}

// spare saves the settings of the processes before it changes them: an agent may be killed between the two.
func spare(group *kernel.Cgroup, path string, pids []int) error {
	if records.Exists(path) { // they are, or an agent was killed over it: what is noted is what they were
		return nil
	}
	var was spared
	for _, pid := range pids {
		one, err := sparing(pid)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		was.Processes = append(was.Processes, one)
	}
	avoided, err := group.AvoidOOMD()
	if err != nil {
		return err
	}
	if avoided {
		was.Group = group.FreezerDir()
	}
	if err := records.Save(path, was); err != nil {
		return err
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

// Unprotect restores the OOM settings of the processes. The processes themselves are released by ReleaseSeized, which Thaw and
// Cgroup.Kill call. Doing nothing is success.
func Unprotect(path string) error {
	var was spared
	err := records.Load(path, &was)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find out what its processes were for the OOM killer: %w", err)
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
		group, err := kernel.CgroupAt(was.Group)
		if err == nil {
			err = group.EndAvoidOOMD()
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return records.Remove(path)
}
