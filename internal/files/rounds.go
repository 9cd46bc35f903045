package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/chunk"
)

// SourceConfig configures a Source.
type SourceConfig struct {
	Trees []Tree

	// Mapped returns the files that processes of the container may write without a trace in their times. If
	// it is nil, there are none.
	Mapped func(context.Context) (Mapped, error)

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

// RoundStats describes a round.
type RoundStats struct {
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
	config SourceConfig
	trees  []*sourceTree
	key    chunk.Key
	lists  *spool // of chunks
	number uint64
	clock  clockOffset
	broken error

	// The following belong to the present round.
	kind  roundKind
	since instant
	stats RoundStats
}

// sourceTree is what is known about a tree and its mirror.
type sourceTree struct {
	scanTree
	hold    int
	block   int64  // a hole is no smaller
	numbers uint64 // assigned so far

	// In the latest round, a new inode with several names had got one of them meanwhile. Another of its
	// names may have been examined before that, when it was the only one.
	doubtful bool
}

// NewSource opens the trees, and keeps them open until Close.
func NewSource(config SourceConfig) (*Source, error) {
	if config.Workers <= 0 {
		config.Workers = runtime.NumCPU()
	}
	config.Workers = min(config.Workers, maxWorkers)
	key, err := chunk.NewKey()
	if err != nil {
		return nil, err
	}
	s := &Source{config: config, key: key, lists: newSpool(config.Dir)}
	for _, tree := range config.Trees {
		t := &sourceTree{scanTree: scanTree{Tree: tree, links: newLinkTable(config.Dir)}}
		if t.root, t.hold, err = openSource(tree.Path); err == nil {
			s.trees = append(s.trees, t)
			err = t.ask()
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("read %s: %w", tree.Path, err), s.Close())
		}
	}
	s.clock, err = offset()
	return s, err
}

// ask queries the file system.
func (t *sourceTree) ask() error {
	const smallest = 4 << 10 // what some call a block is larger than what may be a hole
	var stat unix.Statfs_t
	if err := unix.Fstatfs(t.root, &stat); err != nil {
		return fmt.Errorf("ask for the file system: %w", err)
	}
	t.clock, t.block = clockOf(&stat), min(stat.Bsize, smallest)
	return nil
}

// Close releases the trees and forgets what is known about the mirror.
func (s *Source) Close() error {
	for _, t := range s.trees {
		unix.Close(t.root)
		if t.hold >= 0 {
			// Dropping the last reference to a mount waits some milliseconds for the kernel's readers: not
			// here.
			go unix.Close(t.hold)
		}
		t.links.close()
		if t.manifest != nil {
			t.manifest.close()
		}
	}
	s.trees = nil
	s.lists.close()
	return nil
}

// Round sends the differences while the container runs. Files that are written meanwhile are no error: the
// next round has them. Progress, which may be nil, is called now and then with the number of bytes written
// to w.
func (s *Source) Round(ctx context.Context, w io.Writer, progress func(sent int64)) (RoundStats, error) {
	return s.round(ctx, w, liveRound, progress)
}

// Final sends the differences when nothing is written any more.
func (s *Source) Final(ctx context.Context, w io.Writer, progress func(sent int64)) (RoundStats, error) {
	return s.round(ctx, w, finalRound, progress)
}

// Last sends what the program that froze the container has changed since the final round: names, in
// directories with such changes. It ends the copy.
func (s *Source) Last(ctx context.Context, w io.Writer, progress func(sent int64)) (RoundStats, error) {
	return s.round(ctx, w, lastRound, progress)
}

func (s *Source) round(ctx context.Context, w io.Writer, kind roundKind, progress func(int64)) (RoundStats,
	error) {
	if s.broken != nil {
		return RoundStats{}, fmt.Errorf("send files: an earlier round failed: %w", s.broken)
	}
	begin := time.Now()
	s.number++
	s.kind, s.stats = kind, RoundStats{Number: int(s.number), Final: kind != liveRound}
	err := s.send(ctx, w, progress)
	if err != nil {
		s.broken = err
	}
	s.stats.Duration = time.Since(begin)
	return s.stats, err
}

func (s *Source) send(ctx context.Context, w io.Writer, progress func(int64)) error {
	now, err := offset()
	if err != nil {
		return err
	}
	believed := !now.behind(s.clock)
	s.clock = now
	if s.since, err = beginRound(ctx, s.config.Mapped); err != nil {
		return err
	}
	out, err := newRoundWriter(w, s.number, s.kind, progress)
	if err != nil {
		return err
	}
	for _, tree := range s.trees {
		if err := s.tree(ctx, tree, out, believed); err != nil {
			return fmt.Errorf("read %s: %w", tree.Path, err)
		}
	}
	s.stats.SentBytes, s.stats.ChangedEntries = int64(out.content), int64(out.entries)
	return out.end()
}

// tree updates the mirror of one tree. If stamps are not trusted, it reads all files again.
func (s *Source) tree(ctx context.Context, tree *sourceTree, out *roundWriter, believed bool) error {
	c := &copier{source: s, tree: tree, ctx: ctx, out: out, believed: believed}
	if tree.manifest == nil {
		return c.first()
	}
	begin := time.Now()
	found := s.scan(tree, believed)
	found.shallow, found.trusting = s.kind == lastRound && !tree.doubtful, s.kind == lastRound
	tree.doubtful = false
	err := found.run(ctx)
	if err == nil && s.kind != lastRound {
		var moved bool
		if moved, err = s.moveDirectories(c, found); moved && err == nil {
			found.close()
			c = &copier{source: s, tree: tree, ctx: ctx, out: out, believed: believed}
			found = s.scan(tree, believed)
			err = found.run(ctx)
		}
	}
	if err == nil && found.unknown.Load() {
		// Only an examination of all names finds those that an inode already had.
		found.close()
		found = s.scan(tree, believed)
		found.trusting = true
		err = found.run(ctx)
	}
	defer found.close()
	s.stats.ScanTime += time.Since(begin)
	s.stats.Entries += found.entries.Load()
	if err != nil || found.equal() {
		return err
	}
	return c.again(found)
}

func (s *Source) scan(tree *sourceTree, believed bool) *scan {
	return &scan{dir: s.config.Dir, parallel: s.config.Workers, since: &s.since, tree: &tree.scanTree,
		believed: believed}
}
