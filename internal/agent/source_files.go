package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/copies"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/progress"
	"github.com/godwit/godwit/internal/wire/stream"
)

// fileSource carries a container's files to the target: in rounds while it runs, over a data connection of
// their own, and what is left in the freeze, over the migration's, which is warm then.
type fileSource struct {
	trees   *copies.Source
	tracker *progress.Tracker
	history []copies.Stats // of rounds while the container ran
	at      time.Time      // the last of them ended

	data    *stream.Session // for rounds; nil: there are none
	out     *stream.Sections
	applied chan uint64 // rounds that are in place at the target; closed when the target says nothing more
	resumed chan error  // what became of what the target had
	asked   atomic.Bool // the target is to tell that
	closed  bool        // by us; the source's mutex guards it

	listeners sync.WaitGroup // hear what the target says
}

// makeFiles makes what finds changes, if it has not been made.
func (s *source) makeFiles(ctx context.Context) error {
	if s.files != nil {
		return nil
	}
	trees, err := s.trees(ctx)
	if err != nil {
		return err
	}
	defer files.LetGo(trees)
	source, err := copies.NewSource(copies.Config{Trees: s.movable(trees), Dir: s.filesDir(),
		Workers: s.agent.cores, Mapped: s.mapped})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.files = &fileSource{trees: source, tracker: s.move.tracker}
	s.mu.Unlock()
	go s.agent.guarded(s.endFiles)()
	return nil
}

// endFiles gives everything back when the migration has ended: who hears the target may be using it
// until the connection is closed.
func (s *source) endFiles() {
	<-s.move.done
	s.closeFiles()
	s.files.listeners.Wait()
	_ = s.files.trees.Close() // what it has made has no names
}

// filesDir is for what is known of files that were sent: it may be much, and is of no use to another agent.
func (s *source) filesDir() string { return s.agent.moves.Dir(s.id()) }

// openFiles opens the connection for rounds, if there is none.
func (s *source) openFiles(ctx context.Context) error {
	if err := s.makeFiles(ctx); err != nil || s.files.data != nil {
		return err
	}
	data, err := s.link.OpenMore(ctx, purposeFiles, s.agent.cores)
	if err != nil {
		return err
	}
	f := s.files
	s.mu.Lock()
	f.data, f.out = data, stream.NewSections(data, s.move.tracker.Transferred)
	f.applied, f.resumed = make(chan uint64, 1), make(chan error, 1)
	s.mu.Unlock()
	f.listeners.Go(s.move.guarded(func() {
		err := guard.Do(func() error { return f.listen(s.agent.ctx, keptLimits(s.offered)) })
		s.agent.logPanic(err)
		close(f.applied)
		s.mu.Lock()
		closed := f.closed
		s.mu.Unlock()
		if !closed {
			s.move.tell(migration.PeerLost{Error: "files: " + err.Error()})
		}
	}))
	if err := data.SetCodec(s.link.Data().Codec()); err != nil {
		return err
	}
	return s.resumeFiles()
}

// listen hears which rounds are in place, and notices that the target ends the connection.
func (f *fileSource) listen(ctx context.Context, limits files.Limits) error {
	for {
		section, err := f.data.Next()
		if err == nil && section.Kind == kindKept {
			if err = f.hearKept(ctx, section, limits); err == nil {
				continue
			}
		}
		if err != nil {
			return err
		}
		if section.Kind != kindPlaced {
			return fmt.Errorf("a section %.40q comes from the target", section.Kind)
		}
		number, err := strconv.ParseUint(section.Name, 10, 64)
		if err != nil {
			return fmt.Errorf("the target reported an invalid round %.40q", section.Name)
		}
		if _, err := io.Copy(io.Discard, section); err != nil {
			return err
		}
		select {
		case f.applied <- number:
		default:
			return errors.New("the target reported a round that it was not asked about")
		}
	}
}

// closeFiles ends the connection for rounds. It may be called at any time, and again.
func (s *source) closeFiles() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.files != nil && s.files.data != nil {
		s.files.closed = true
		_ = s.files.data.Close() // nothing is under way on it that matters
	}
}

// round sends what has changed while the container runs. It is over when the target has it in place.
func (f *fileSource) round(ctx context.Context) (copies.Stats, error) {
	began := time.Now()
	section, err := f.out.Begin(kindFiles, "")
	if err != nil {
		return copies.Stats{}, err
	}
	stats, err := f.trees.Round(ctx, section, nil)
	if err = errors.Join(err, section.Close()); err != nil {
		return stats, fmt.Errorf("files of the container: %w", err)
	}
	if err := f.data.Push(); err != nil {
		return stats, err
	}
	select {
	case _, open := <-f.applied:
		if !open {
			return stats, errors.New("the target has ended the connection for files")
		}
	case <-ctx.Done():
		return stats, context.Cause(ctx)
	}
	stats.Duration = time.Since(began)
	f.history, f.at = append(f.history, stats), time.Now()
	f.tracker.FileRound(stats, f.data.Counters().Sent[kindFiles].WireBytes)
	return stats, nil
}

// freezeRound is copies.Source's Final or Last.
type freezeRound func(ctx context.Context, w io.Writer, progress func(sent int64)) (copies.Stats, error)

// freeze sends what has changed last: Final, which looks at everything while the container is
// dumped, and then Last, for what the dump leaves in the file system. The target does not say when
// it is in place: it restores nothing before.
func (f *fileSource) freeze(ctx context.Context, out *stream.Sections, round freezeRound) error {
	section := &lateSection{out: out, kind: kindFiles}
	stats, err := round(ctx, section, nil)
	if err = errors.Join(err, section.Close()); err != nil {
		return fmt.Errorf("files of the container: %w", err)
	}
	f.tracker.FileRound(stats, 0)
	return nil
}

// lateSection is a section that begins when there is much to send, or it ends: until then others
// can send theirs.
type lateSection struct {
	out     *stream.Sections
	kind    string
	early   []byte
	section io.WriteCloser // nil: it has not begun
}

// earlyBytes is kept back: as much as changes in a usual freeze.
const earlyBytes = 1 << 20

func (l *lateSection) Write(p []byte) (int, error) {
	if l.section == nil && len(l.early)+len(p) <= earlyBytes {
		l.early = append(l.early, p...)
		return len(p), nil
	}
	if err := l.begin(); err != nil {
		return 0, err
	}
	return l.section.Write(p)
}

func (l *lateSection) begin() (err error) {
	if l.section != nil {
		return nil
	}
	if l.section, err = l.out.Begin(l.kind, ""); err != nil {
		return err
	}
	_, err = l.section.Write(l.early)
	l.early = nil
	return err
}

// Close ends the section, and begins it before if need be. A section that has failed must not be
// taken for whole: its content ends by itself.
func (l *lateSection) Close() error {
	if err := l.begin(); err != nil && l.section == nil {
		return err
	}
	return l.section.Close()
}
