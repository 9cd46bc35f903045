package memory

import "github.com/godwit/godwit/internal/kernel"

// Use is how much memory the processes of a container take, in bytes.
type Use struct {
	// Whole is their private memory, that of each of them: what they share copy-on-write is filled
	// for each at the target.
	Whole int64
	Parts int64 // the same, with what they share copy-on-write counted once: what it takes here
	// Shared is the memory that they share without a file, and that is carried here.
	Shared int64
}

// Use adds up the memory of the processes as of the last round. It takes 10 ms for a GiB, so it is
// nothing for the freeze.
func (s *Source) Use() (Use, error) {
	var all Use
	for pid := range s.tasks {
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

// leastSharing is from which size on what processes share copy-on-write is kept shared.
const leastSharing = 256 << 10

// lookForSharing finds out which processes share pages copy-on-write. They are read in another way:
// see task.read. It is looked for when there are new processes.
func (s *Source) lookForSharing(stats *RoundStats) error {
	if stats.Attached == 0 || len(s.tasks) < 2 {
		return nil
	}
	for pid, t := range s.tasks {
		use, err := kernel.ReadPrivateUse(pid)
		if ignoreGone(err) != nil {
			return err
		}
		t.shares = use.Whole-use.Parts >= leastSharing
	}
	return nil
}

// read reads pages. To read shared ones in the quick way would make them the process's own, and the
// container larger.
func (t *task) read(ranges []kernel.PageRange, into []byte) (int, error) {
	if t.shares {
		return t.reader.ReadGently(ranges, into)
	}
	return t.reader.Read(ranges, into)
}
