package copies

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/chunk"
	"github.com/godwit/godwit/internal/files/compare"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/manifest"
	"github.com/godwit/godwit/internal/files/records"
)

// Config configures a Source.
type Config struct {
	Trees []files.Tree

	// Mapped returns the files that processes of the container may write without a trace in their times. If
	// it is nil, there are none.
	Mapped func(context.Context) (compare.Mapped, error)

	// Dir is the directory for manifests, which are files without names. They take at most a few hundred
	// bytes for each file, and a thousandth of the contents of large files.
	Dir string

	// Workers is how many files are examined in parallel; 0: as many as there are processors. At most
	// maxWorkers are used, because each has buffers.
	Workers int
}

// maxWorkers bounds the memory of a Source on large machines: a worker takes about a megabyte, and
// four jobs on their way almost two.
const maxWorkers = 8

// Stats describes a round.
type Stats struct {
	Number   int
	Final    bool
	Duration time.Duration
	ScanTime time.Duration // until the differences were known

	Entries        int64 // examined
	ChangedEntries int64 // sent, with or without their content
	SentBytes      int64 // of content
	ReadBytes      int64 // of content
	KeptBytes      int64 // of content from an earlier copy at the mirror

	// Files that the next round reads again in any case, because they were being written or may be written
	// without a trace.
	UnsettledFiles int64
	UnsettledBytes int64
}

// Source is the source's half of a copy in rounds: each round sends the differences to what the Mirror at
// the other end has. It only reads the trees, and not even their access times change. One goroutine at a
// time may use it.
//
// After an error the state of the mirror is unknown, and there can be no further round.
//
// Memory does not depend on the number of files, their sizes, or their number of names.
type Source struct {
	config Config
	trees  []*sourceTree
	key    chunk.Key
	lists  *manifest.Spool // of chunks
	number uint64
	clock  compare.ClockOffset
	broken error

	// The following belong to the present round.
	kind  records.RoundKind
	since compare.Instant
	stats Stats
}

// sourceTree is what is known about a tree and its mirror.
type sourceTree struct {
	compare.Tree
	hold    int
	block   int64  // a hole is no smaller
	numbers uint64 // assigned so far

	// In the latest round, a new inode with several names had got one of them meanwhile. Another of its
	// names may have been examined before that, when it was the only one.
	doubtful bool
}

// NewSource opens the trees, and keeps them open until Close.
func NewSource(config Config) (*Source, error) {
	if config.Workers <= 0 {
		config.Workers = runtime.NumCPU()
	}
	config.Workers = min(config.Workers, maxWorkers)
	key, err := chunk.NewKey()
	if err != nil {
		return nil, err
	}
	s := &Source{config: config, key: key, lists: manifest.NewSpool(config.Dir)}
	for _, tree := range config.Trees {
		t := &sourceTree{Tree: compare.Tree{Tree: tree, Links: manifest.NewLinkTable(config.Dir)}}
		if t.Root, t.hold, err = fsys.OpenTree(tree.Path); err == nil {
			s.trees = append(s.trees, t)
			err = t.ask()
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("read %s: %w", tree.Path, err), s.Close())
		}
	}
	s.clock, err = compare.ReadClocks()
	return s, err
}

// ask queries the file system.
func (t *sourceTree) ask() error {
	const smallest = 4 << 10 // what some call a block is larger than what may be a hole
	var stat unix.Statfs_t
	if err := unix.Fstatfs(t.Root, &stat); err != nil {
		return fmt.Errorf("ask for the file system: %w", err)
	}
	t.Clock, t.block = compare.ClockOf(&stat), min(stat.Bsize, smallest)
	return nil
}

// Close releases the trees and forgets what is known about the mirror.
func (s *Source) Close() error {
	for _, t := range s.trees {
		unix.Close(t.Root)
		if t.hold >= 0 {
			// Dropping the last reference to a mount waits some milliseconds for the kernel's readers: not
			// here.
			go unix.Close(t.hold)
		}
		t.Links.Close()
		if t.Manifest != nil {
			t.Manifest.Close()
		}
	}
	s.trees = nil
	s.lists.Close()
	return nil
}

// Round sends the differences while the container runs. Files that are written meanwhile are no error: the
// next round has them. Progress, which may be nil, is called now and then with the number of bytes written
// to w.
func (s *Source) Round(ctx context.Context, w io.Writer, progress func(sent int64)) (Stats, error) {
	return s.round(ctx, w, records.LiveRound, progress)
}

// Final sends the differences when nothing is written any more.
func (s *Source) Final(ctx context.Context, w io.Writer, progress func(sent int64)) (Stats, error) {
	return s.round(ctx, w, records.FinalRound, progress)
}

// Last sends what the program that froze the container has changed since the final round: names, in
// directories with such changes. It ends the copy.
func (s *Source) Last(ctx context.Context, w io.Writer, progress func(sent int64)) (Stats, error) {
	return s.round(ctx, w, records.LastRound, progress)
}

func (s *Source) round(ctx context.Context, w io.Writer, kind records.RoundKind, progress func(int64)) (Stats,
	error) {
	if s.broken != nil {
		return Stats{}, fmt.Errorf("send files: an earlier round failed: %w", s.broken)
	}
	begin := time.Now()
	s.number++
	s.kind, s.stats = kind, Stats{Number: int(s.number), Final: kind != records.LiveRound}
	err := s.send(ctx, w, progress)
	if err != nil {
		s.broken = err
	}
	s.stats.Duration = time.Since(begin)
	return s.stats, err
}

func (s *Source) send(ctx context.Context, w io.Writer, progress func(int64)) error {
	now, err := compare.ReadClocks()
	if err != nil {
		return err
	}
	believed := !now.Behind(s.clock)
	s.clock = now
	if s.since, err = compare.Begin(ctx, s.config.Mapped); err != nil {
		return err
	}
	out, err := records.NewRoundWriter(w, s.number, s.kind, progress)
	if err != nil {
		return err
	}
	for _, tree := range s.trees {
		if err := s.tree(ctx, tree, out, believed); err != nil {
			return fmt.Errorf("read %s: %w", tree.Path, err)
		}
	}
	s.stats.SentBytes, s.stats.ChangedEntries = int64(out.Content), int64(out.Entries)
	return out.End()
}

// tree updates the mirror of one tree. If stamps are not trusted, it reads all files again.
func (s *Source) tree(ctx context.Context, tree *sourceTree, out *records.RoundWriter, believed bool) error {
	c := &copier{source: s, tree: tree, ctx: ctx, out: out, believed: believed}
	if tree.Manifest == nil {
		return c.first()
	}
	begin := time.Now()
	found := s.scan(tree, believed)
	found.Shallow, found.Trusting = s.kind == records.LastRound && !tree.doubtful, s.kind == records.LastRound
	tree.doubtful = false
	err := found.Run(ctx)
	if err == nil && s.kind != records.LastRound {
		var moved bool
		if moved, err = s.moveDirectories(c, found); moved && err == nil {
			found.Close()
			c = &copier{source: s, tree: tree, ctx: ctx, out: out, believed: believed}
			found = s.scan(tree, believed)
			err = found.Run(ctx)
		}
	}
	if err == nil && found.Unknown.Load() {
		// Only an examination of all names finds those that an inode already had.
		found.Close()
		found = s.scan(tree, believed)
		found.Trusting = true
		err = found.Run(ctx)
	}
	defer found.Close()
	s.stats.ScanTime += time.Since(begin)
	s.stats.Entries += found.Entries.Load()
	if err != nil || found.Equal() {
		return err
	}
	return c.again(found)
}

func (s *Source) scan(tree *sourceTree, believed bool) *compare.Scan {
	return &compare.Scan{Dir: s.config.Dir, Parallel: s.config.Workers, Since: &s.since, Tree: &tree.Tree,
		Believed: believed}
}
