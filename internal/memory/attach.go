package memory

import (
	"cmp"
	"errors"
	"io/fs"
	"slices"
	"sync/atomic"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
	"github.com/godwit/godwit/internal/kernel/inject"
	"github.com/godwit/godwit/internal/memory/pageset"
)

// attachTries is the number of rounds in which to try to attach to a process that did not stop in time.
const attachTries = 3

// tasks are the processes whose memory is moved.
type tasks struct {
	config  SourceConfig
	leaving *atomic.Bool  // see Source.Leave
	all     map[int]*task // by the number of the process
	gone    []Task        // tasks that have ended since the sink was last told
}

// update updates the list of tasks: it forgets ended ones, and attaches to new ones.
func (s *tasks) update(frozen bool, stats *RoundStats) error {
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
	for pid, t := range s.all {
		if !alive[pid] {
			_ = t.close() // nothing is left of it that could be closed properly
			delete(s.all, pid)
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
func (s *tasks) tellGone(sink Sink) error {
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
func (s *tasks) meet(pid int, frozen bool, stats *RoundStats) error {
	known := s.all[pid]
	if known != nil {
		if now, err := kernel.ReadProcess(pid); err == nil && now.StartTicks == known.started {
			return s.retry(known, frozen, stats)
		}
		_ = known.close() // another process has its number
		delete(s.all, pid)
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
	s.all[pid] = t
	return nil
}

// sharesMemory reports whether a new process has the memory of a known one, as a child of vfork(2) has
// until it calls execve. To scan it twice would lose pages: each scan takes what it reports from the other.
// Known processes have not begun to share: that comes about with a new process only.
func (s *tasks) sharesMemory(t *task) (bool, error) {
	for _, other := range s.all {
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
func (s *tasks) retry(t *task, frozen bool, stats *RoundStats) error {
	if t.refused == nil || frozen || t.tries >= attachTries || !errors.Is(t.refused, inject.ErrUntraceable) {
		return nil
	}
	if t.tracking != Hashing || s.leaving.Load() && t.carried { // cheaper than sending everything again
		return nil
	}
	return ignoreGone(s.attach(t, stats))
}

// attach makes the kernel track a process in the requested way, or else in the next one that works. Error:
// fs.ErrNotExist when the process is gone.
func (s *tasks) attach(t *task, stats *RoundStats) error {
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

func (s *tasks) arm(t *task, stats *RoundStats) (tracker, error) {
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
		huge: hugePages{space: t.space, seen: pageset.Set{}}}, nil
}

func (s *tasks) inOrder() []*task {
	all := make([]*task, 0, len(s.all))
	for _, t := range s.all {
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b *task) int { return cmp.Compare(a.id, b.id) })
	return all
}

func (s *tasks) byID() map[Task]*task {
	byID := map[Task]*task{}
	for _, t := range s.all {
		byID[t.id] = t
	}
	return byID
}

// renew starts again with a process whose memory is not the tracked one any more.
func (s *tasks) renew(t *task, frozen bool, stats *RoundStats) error {
	if frozen {
		t.refused = errors.New("it has called execve just before the freeze")
		return t.track(Hashing, newHashing())
	}
	return s.attach(t, stats)
}

// directIO reports whether devices may write to memory by themselves.
func (s *tasks) directIO() bool {
	for _, t := range s.all {
		if t.direct.used {
			return true
		}
	}
	return false
}

// close ends all tracking.
func (s *tasks) close() []error {
	var errs []error
	for pid, t := range s.all {
		errs = append(errs, t.close())
		delete(s.all, pid)
	}
	return errs
}
