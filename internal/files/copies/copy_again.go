package copies

import (
	"bytes"
	"errors"
	"io"

	"github.com/godwit/godwit/internal/files/compare"
	"github.com/godwit/godwit/internal/files/manifest"
)

// again goes through the old manifest and what a scan has found, side by side.
func (f *feeder) again(found *compare.Scan) error {
	plan, err := found.Differences()
	if err != nil {
		return err
	}
	var (
		in    = f.c.tree.Manifest.Frames()
		way   = manifest.NewWay()
		gone  goneNames
		part  manifest.Frame
		stack []present
	)
	defer func() {
		for _, p := range stack {
			p.children.close()
		}
	}()
	for {
		err := in.Next(&part)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		path := way.To(&part)
		if part.First {
			if stack, err = f.leave(stack, part.Depth); err != nil {
				return err
			}
		}
		differs := plan.Ok && plan.Next.Frame == part.Offset
		if gone.above(path) {
			for plan.Ok && plan.Next.Frame == part.Offset {
				if err := plan.Advance(); err != nil {
					return err
				}
			}
			continue
		}
		if part.First {
			for i := range stack {
				stack[i].path = path[:len(stack[i].path)] // one string for all
			}
			stack = append(stack, present{path: path, depth: part.Depth, children: &nameList{}})
		}
		top := &stack[len(stack)-1]
		if !differs || plan.Next.Absent {
			if differs {
				if err := plan.Advance(); err != nil {
					return err
				}
			}
			err = f.keep(part.Offset, part.Offset+part.Length)
		} else {
			err = f.part(&part, path, plan, top, &gone)
		}
		if err == nil && part.Last {
			err = f.children(top)
		}
		if err != nil {
			return err
		}
	}
	if _, err := f.leave(stack, 0); err != nil {
		return err
	}
	return f.keep(0, 0)
}

// present is a directory on the way to the present frame.
type present struct {
	path     string
	depth    int
	children *nameList  // that are new
	self     *directory // nil: it is as it was
}

// leave ends the directories on the way that are as deep or deeper.
func (f *feeder) leave(stack []present, depth int) ([]present, error) {
	for len(stack) > 0 && stack[len(stack)-1].depth >= depth {
		top := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if top.self == nil {
			continue
		}
		if err := f.send(&copyJob{kind: jobLeave, path: top.path, self: top.self}); err != nil {
			return stack, err
		}
	}
	return stack, nil
}

// keep says that a piece of the old manifest holds on; several in a row are one job.
func (f *feeder) keep(start, end int64) error {
	if f.verbatim.end == start && start != end {
		f.verbatim.end = end
		return nil
	}
	full := f.verbatim
	f.verbatim = copyJob{kind: jobVerbatim, start: start, end: end}
	if full.start == full.end {
		return nil
	}
	return f.put(&full)
}

// send puts a job behind what was kept.
func (f *feeder) send(job *copyJob) error {
	if err := f.keep(0, 0); err != nil {
		job.close()
		return err
	}
	return f.put(job)
}

// part sends what is different in a part of a directory.
func (f *feeder) part(part *manifest.Frame, path string, plan *compare.DifferenceReader, top *present,
	gone *goneNames) error {
	dir, err := f.open(path)
	if err != nil {
		return err
	}
	begin := &copyJob{kind: jobPart, path: path, frame: *part}
	begin.frame.Entries = bytes.Clone(part.Entries)
	if plan.Next.Self {
		begin.self = &directory{quiet: plan.Next.Quiet,
			known: manifest.Self{Stamp: plan.Next.Stamp, Attrs: part.Self.Attrs}}
		begin.dir = dir.Use()
		top.self = begin.self
	}
	entries := begin.frame.Entries
	if err := f.send(begin); err != nil {
		return err
	}
	old := manifest.KnownReader{Unread: entries}
	var entry manifest.Known
	_, ok := old.Next(&entry)
	job := &copyJob{kind: jobFiles, path: path, dir: dir.Use()}
	defer func() { job.close() }()
	for plan.Ok && plan.Next.Frame == part.Offset {
		for _, d := range plan.Next.Deltas {
			for ok && entry.Name < d.Name {
				_, ok = old.Next(&entry)
			}
			w := want{Delta: d}
			if ok && entry.Name == d.Name && d.Kind == compare.DeltaChanged {
				known := entry
				w.old = &known
			}
			if ok && entry.Name == d.Name && entry.Directory {
				gone.add(path, d.Name)
			}
			if job, err = f.want(job, top.children, w); err != nil {
				return err
			}
		}
		if err := plan.Advance(); err != nil {
			return err
		}
	}
	if err := f.flush(&job); err != nil {
		return err
	}
	return f.put(&copyJob{kind: jobPartEnds, path: path})
}

// children sends the directories that are new in one that was there.
func (f *feeder) children(top *present) error {
	defer top.children.close()
	for {
		name, err := top.children.next()
		if err != nil || name == "" {
			return err
		}
		if err := f.keep(0, 0); err != nil {
			return err
		}
		if err := f.grow(manifest.Joined(top.path, name), name, top.depth+1); err != nil {
			return err
		}
	}
}

// goneNames are names of directories that the mirror has no more, in the directories on the way to
// the present one.
type goneNames struct {
	levels []goneLevel
}

type goneLevel struct {
	path  string
	names map[string]bool
}

func (g *goneNames) add(path, name string) {
	if n := len(g.levels); n == 0 || g.levels[n-1].path != path {
		g.levels = append(g.levels, goneLevel{path, make(map[string]bool)})
	}
	g.levels[len(g.levels)-1].names[name] = true
}

// above reports whether a path is that of something gone, or leads through it. Paths come as in a manifest.
func (g *goneNames) above(path string) bool {
	for n := len(g.levels); n > 0 && g.levels[n-1].path != path &&
		below(g.levels[n-1].path, path) == ""; n-- {
		g.levels = g.levels[:n-1]
	}
	for _, l := range g.levels {
		if l.names[below(l.path, path)] {
			return true
		}
	}
	return false
}

// below returns the name in a directory through which a path leads; none: "".
func below(directory, path string) string {
	if directory != "" {
		if len(path) <= len(directory) || path[:len(directory)] != directory || path[len(directory)] != '/' {
			return ""
		}
		path = path[len(directory)+1:]
	}
	for i := range len(path) {
		if path[i] == '/' {
			return path[:i]
		}
	}
	return path
}
