package rounds

import (
	"context"
	"time"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/inject"
	"github.com/godwit/godwit/internal/memory"
)

// tracked is a mapping of a process whose writes are tracked, with the same system calls as in a migration.
type tracked struct {
	mapping kernel.Mapping
	protect *kernel.WriteProtect
	pagemap *kernel.Pagemap
}

// track attaches to a process. It returns how long the process was stopped.
func track(s *subject) (*tracked, time.Duration, error) {
	fd, stopped, err := inject.OpenUserfault(s.pid())
	if err != nil {
		return nil, 0, err
	}
	t := &tracked{}
	if t.protect, err = kernel.NewWriteProtect(fd); err != nil {
		return nil, 0, err
	}
	if t.mapping, err = s.largest(); err == nil {
		err = t.protect.Register(t.mapping.Start, t.mapping.End)
	}
	if err == nil {
		t.pagemap, err = s.space.OpenPagemap()
	}
	if err != nil {
		_ = t.protect.Close() // tracking is given up
		return nil, 0, err
	}
	return t, stopped, nil
}

// canTrack returns what the kernel lacks. Godwit then has other ways, which cost more.
func canTrack(context.Context) error {
	for _, f := range kernel.Features() {
		if f.Name != "userfaultfd asynchronous write-protection" && f.Name != "PAGEMAP_SCAN" {
			continue
		}
		if err := f.Probe(); err != nil {
			return err
		}
	}
	return nil
}

// scanPages is how many pages a migration scans at a time.
const scanPages = 2048

// scan finds pages written since the last scan.
func (t *tracked) scan() (took time.Duration, pages uint64, err error) {
	began := time.Now()
	for at := t.mapping.Start; at < t.mapping.End; {
		ranges, next, err := t.pagemap.Written(at, t.mapping.End, scanPages)
		if err != nil {
			return 0, 0, err
		}
		for _, r := range ranges {
			pages += (r.End - r.Start) / uint64(memory.PageSize())
		}
		at = next
	}
	return time.Since(began), pages, nil
}

func (t *tracked) close() error {
	if err := t.pagemap.Close(); err != nil {
		return err
	}
	return t.protect.Close()
}
