package moving

import (
	"errors"
	"fmt"
	"io/fs"

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

// Protect makes the frozen processes of a group the last that OOM killers take, and passes them to hold. It saves their previous
// settings in the record at path, for Unprotect. It does nothing to a group that is not frozen. An engine calls it while nobody can
// thaw or destroy the container.
func Protect(group *kernel.Cgroup, path string, hold func(pids []int) error) error {
	frozen, err := group.Frozen()
	if err != nil || !frozen {
		return err
	}
	pids, err := group.Procs()
	if err != nil {
		return err
	}
	return errors.Join(spare(group, path, pids), hold(pids))
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
