package memory

import "github.com/godwit/godwit/internal/kernel"

// Use is how much memory the processes of a container take, in bytes.
type Use struct {
	// Whole is the sum of their private memory: pages shared copy-on-write are filled for each process at
	// the target.
	Whole int64
	Parts int64 // the same, with pages shared copy-on-write counted once: what it takes here
	// Shared is the memory that they share without a file, and that is carried here.
	Shared int64
}

// Use adds up the memory of the processes as of the last round. It takes 10 ms per GiB, too long for the
// freeze.
func (s *Source) Use() (Use, error) {
	var all Use
	for pid := range s.tasks.all {
		one, err := kernel.ReadPrivateUse(pid)
		if ignoreGone(err) != nil {
			return Use{}, err
		}
		all.Whole += int64(one.Whole)
		all.Parts += int64(one.Parts)
	}
	for _, o := range s.shared.objects {
		all.Shared += o.blocks()
	}
	return all, nil
}

// leastSharing is the minimum size from which memory shared copy-on-write is kept shared.
const leastSharing = 256 << 10

// lookForSharing finds out which processes share pages copy-on-write. Their pages are read differently: see
// task.read. It runs when there are new processes.
func (s *tasks) lookForSharing(stats *RoundStats) error {
	if stats.Attached == 0 || len(s.all) < 2 {
		return nil
	}
	for pid, t := range s.all {
		use, err := kernel.ReadPrivateUse(pid)
		if ignoreGone(err) != nil {
			return err
		}
		t.shares = use.Whole-use.Parts >= leastSharing
	}
	return nil
}

// read reads pages. Reading shared pages in the fast way would give the process copies of its own, and make
// the container larger.
func (t *task) read(ranges []kernel.PageRange, into []byte) (int, error) {
	if t.shares {
		return t.reader.ReadGently(ranges, into)
	}
	return t.reader.Read(ranges, into)
}
