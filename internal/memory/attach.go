package memory

import (
	"cmp"
	"errors"
	"io/fs"
	"slices"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
	"github.com/godwit/godwit/internal/kernel/inject"
)

// attachTries is the number of rounds in which to try to attach to a process that did not stop in time.
const attachTries = 3

// update updates the list of tasks: it forgets ended ones, and attaches to new ones.
func (s *Source) update(frozen bool, stats *RoundStats) error {
	pids, err := s.config.Processes()
	if err != nil {
		return err
	}
	alive := map[int]bool{}
	for _, pid := range pids {
		alive[pid] = true
		if err := s.meet(pid, frozen, stats); err != nil {
			return err
		}
	}
	for pid, t := range s.tasks {
		if !alive[pid] {
			_ = t.close() // nothing is left of it that could be closed properly
			delete(s.tasks, pid)
			s.gone = append(s.gone, t.id)
			continue
		}
		stats.Tasks++
		if err := t.lookForDirectIO(frozen); err != nil {
			return err
		}
		if t.refused != nil {
			stats.Refused = append(stats.Refused,
				Refusal{PID: pid, Task: t.id, Name: t.name, Reason: t.refused.Error(), Instead: t.tracking})
		}
	}
	return nil
}

// tellGone tells the sink which tasks have ended, if the sink must know.
func (s *Source) tellGone(sink Sink) error {
	gone := s.gone
	s.gone = nil
	forgetter, ok := sink.(Forgetter)
	if !ok {
		return nil
	}
	for _, id := range gone {
		if slices.ContainsFunc(s.inOrder(), func(t *task) bool { return t.id == id }) {
			continue // another process has its number
		}
		if err := forgetter.Forget(id); err != nil {
			return err
		}
	}
	return nil
}

// meet registers a present process.
func (s *Source) meet(pid int, frozen bool, stats *RoundStats) error {
	known := s.tasks[pid]
	if known != nil {
		if now, err := kernel.ReadProcess(pid); err == nil && now.StartTicks == known.started {
			return s.retry(known, frozen, stats)
		}
		_ = known.close() // another process has its number
		delete(s.tasks, pid)
		s.gone = append(s.gone, known.id)
	}
	t, err := openTask(pid)
	if t == nil || err != nil {
		return err
	}
	shares, err := s.sharesMemory(t)
	if err != nil || shares {
		return errors.Join(ignoreGone(err), t.close())
	}
	if frozen {
		t.refused = errors.New("it began just before the freeze")
		err = t.track(Hashing, newHashing())
	} else {
		err = s.attach(t, stats)
	}
	if err != nil {
		return errors.Join(ignoreGone(err), t.close())
	}
	s.tasks[pid] = t
	return nil
}

// sharesMemory reports whether a new process has the memory of a known one, as a child of vfork(2) has
// until it calls execve. To scan it twice would lose pages: each scan takes what it reports from the other.
// Known processes have not begun to share: that comes about with a new process only.
func (s *Source) sharesMemory(t *task) (bool, error) {
	for _, other := range s.tasks {
		same, err := kernel.ShareMemory(t.pid, other.pid)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		if same {
			return true, nil
		}
	}
	return false, nil
}

// retry tries again to attach to a process that did not stop in time.
func (s *Source) retry(t *task, frozen bool, stats *RoundStats) error {
	if t.refused == nil || frozen || t.tries >= attachTries || !errors.Is(t.refused, inject.ErrUntraceable) {
		return nil
	}
	if t.tracking != Hashing || s.Leaving() && t.carried { // cheaper than sending everything again
		return nil
	}
	return ignoreGone(s.attach(t, stats))
}

// attach makes the kernel track a process in the requested way, or else in the next one that works. Error:
// fs.ErrNotExist when the process is gone.
func (s *Source) attach(t *task, stats *RoundStats) error {
	stats.Attached++
	t.tries++
	t.refused = nil
	if s.config.Tracking == WriteProtect {
		by, err := s.arm(t, stats)
		if errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil {
			return t.track(WriteProtect, by)
		}
		t.refused = err
	}
	if s.config.Tracking != Hashing {
		err := kernel.ProbeSoftDirty()
		if err == nil {
			return t.track(SoftDirty, newSoftDirty(t.space))
		}
		t.refused = cmp.Or(t.refused, err)
	}
	return t.track(Hashing, newHashing())
}

func (s *Source) arm(t *task, stats *RoundStats) (tracker, error) {
	if err := cgroup.CheckDescriptor(t.pid); err != nil {
		return nil, err
	}
	fd, stopped, err := s.config.Open(t.pid)
	stats.Stopped = max(stats.Stopped, stopped)
	if err != nil {
		return nil, err
	}
	protect, err := kernel.NewWriteProtect(fd)
	if err != nil {
		return nil, err
	}
	return &armed{protect: protect, areas: t.lazyAreas, byHand: newHashing(),
		huge: hugePages{space: t.space, seen: pageSet{}}}, nil
}
