package copies

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/compare"
	"github.com/godwit/godwit/internal/files/manifest"
)

// emit sends the results of a job, in the order of jobs.
func (c *copier) emit(job *copyJob) error {
	defer job.close()
	switch job.kind {
	case jobVerbatim:
		return c.writer.Verbatim(c.tree.Manifest, job.start, job.end)
	case jobDirectory:
		return c.emitDirectory(job)
	case jobPart:
		c.emitPart(job)
		return nil
	case jobFiles:
		err := c.emitFiles(job)
		select {
		case c.spare <- job.out[:0]:
		default:
		}
		return err
	case jobPartEnds:
		if err := c.upTo(""); err != nil {
			return err
		}
		return c.writer.End()
	default:
		return c.emitLeave(job)
	}
}

func (c *copier) emitDirectory(job *copyJob) error {
	c.source.stats.Entries++
	if job.frame.Depth == 0 {
		if err := c.goTo(""); err != nil {
			return err
		}
	} else {
		if err := c.goTo(parent(job.path)); err != nil {
			return err
		}
		if err := c.out.Directory(job.frame.Name); err != nil {
			return err
		}
		c.at = job.path
	}
	job.frame.Self = job.self.known
	c.writer.Begin(&job.frame)
	c.old, c.oldMore = manifest.KnownReader{}, false
	return nil
}

func (c *copier) emitPart(job *copyJob) {
	if job.self != nil {
		job.frame.Self = job.self.known
	}
	c.writer.Begin(&job.frame)
	c.old = manifest.KnownReader{Unread: job.frame.Entries}
	c.oldRaw, c.oldMore = c.old.Next(&c.oldNext)
}

// upTo copies the manifest's records of names before one; "": of all.
func (c *copier) upTo(name string) error {
	for c.oldMore && (name == "" || c.oldNext.Name < name) {
		if err := c.writer.Raw(c.oldRaw); err != nil {
			return err
		}
		c.oldRaw, c.oldMore = c.old.Next(&c.oldNext)
	}
	if c.oldMore && c.oldNext.Name == name {
		c.oldRaw, c.oldMore = c.old.Next(&c.oldNext)
	}
	return nil
}

func (c *copier) emitFiles(job *copyJob) error {
	begin := 0
	for i := range job.results {
		w, res := &job.wants[i], &job.results[i]
		if err := c.upTo(w.Name); err != nil {
			return err
		}
		if w.Kind == compare.DeltaGone {
			continue
		}
		err := c.emitRecords(job, begin, res)
		begin = res.end
		if err == nil && res.deferred {
			err = c.deferred(job, w, res)
		}
		if err == nil {
			err = c.note(job, w, res)
		}
		if err != nil {
			return fmt.Errorf("%q: %w", manifest.Joined(job.path, w.Name), err)
		}
	}
	return nil
}

// emitRecords sends the records that a worker has made for one name.
func (c *copier) emitRecords(job *copyJob, begin int, res *result) error {
	if res.end == begin {
		return nil
	}
	if err := c.goTo(job.path); err != nil {
		return err
	}
	c.out.Entries += uint64(res.entries)
	c.out.Content += res.data
	_, err := c.out.Out.Write(job.out[begin:res.end])
	return err
}

// note records what the mirror now has under a name.
func (c *copier) note(job *copyJob, w *want, res *result) error {
	if w.Mode == unix.DT_DIR {
		return c.writer.Add(&manifest.Known{Name: w.Name, Directory: true})
	}
	c.source.stats.Entries++
	c.source.stats.KeptBytes += res.kept
	k := &res.known
	if res.lost {
		if w.old == nil {
			return nil
		}
		if k = w.old; c.wasParked(job.path, w) {
			return nil
		}
		k.Settled = false
	}
	if !k.Settled && k.Stamp.Kind() == unix.S_IFREG {
		c.source.stats.UnsettledFiles++
		c.source.stats.UnsettledBytes += k.Stamp.Size()
	}
	return c.writer.Add(k)
}

func (c *copier) emitLeave(job *copyJob) error {
	if !job.self.sends {
		return nil
	}
	if err := c.goTo(job.path); err != nil {
		return err
	}
	if job.path == "" {
		c.inside = false
	}
	c.at = parent(job.path)
	return c.out.Leave(&job.self.entry)
}

// goTo moves the stream to a directory that the mirror has.
func (c *copier) goTo(path string) error {
	if !c.inside {
		if err := c.out.Tree(c.tree.Kind, c.tree.Name); err != nil {
			return err
		}
		c.inside, c.at = true, ""
	}
	for c.at != path && (c.at != "" && below(c.at, path) == "") {
		if err := c.out.Up(); err != nil {
			return err
		}
		c.at = parent(c.at)
	}
	for c.at != path {
		name := below(c.at, path)
		if err := c.out.Enter(name); err != nil {
			return err
		}
		c.at = path[:len(path)-len(rest(c.at, path, name))]
	}
	return nil
}

// rest returns the rest of a path after a name in a directory.
func rest(directory, path, name string) string { return path[len(manifest.Joined(directory, name)):] }

func parent(path string) string {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '/' {
			return path[:i]
		}
	}
	return ""
}
