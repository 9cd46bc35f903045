package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
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

// Container is the container that moves away.
type Container interface {
	// Trees are its directories that move. The caller releases them (files.LetGo).
	Trees(ctx context.Context) ([]files.Tree, error)
	// Processes are those that may write to them now.
	Processes(ctx context.Context) ([]int, error)
}

// Link is the way to the target.
type Link interface {
	// OpenMore opens a data connection, with workers that compress.
	OpenMore(ctx context.Context, purpose string, workers int) (*stream.Session, error)
	// Codec is what gets most through the link, as far as is known.
	Codec() stream.Codec
	// BytesPerSecond is how much gets through; 0: not known.
	BytesPerSecond() float64
}

// Migration is the migration of the container, at the source.
type Migration interface {
	// OfferedBytes is the size of the files, as the target was told.
	OfferedBytes() int64
	// KeptThere reports whether the target has files of an earlier attempt.
	KeptThere() bool
	// Lost is called when the target ends the connection for rounds.
	Lost(why error)
	// Ended is closed when the migration has ended on this node.
	Ended() <-chan struct{}
}

// Settings are the user's, who may change them while the migration is under way.
type Settings interface {
	Get() migration.Settings
}

// Choices are what others decide about rounds.
type Choices interface {
	// Auto reports whether the mode was chosen for the user.
	Auto() bool
	// Wanted tells why the rounds shall end; empty: they need not.
	Wanted() string
}

// SenderConfig is what a Sender is made of.
type SenderConfig struct {
	Container Container
	Link      Link
	Migration Migration
	Settings  Settings
	Choices   Choices
	Figures   *progress.Tracker
	Target    string // the name of the node
	Dir       string // for what is known of files that were sent, which may be much
	Cores     int    // of this node
	Log       *slog.Logger
}

// Sender carries a container's files to the target: in rounds while it runs, over a data connection of
// their own, and what is left in the freeze, over the migration's, which is warm then. One step at a time
// may use it; Close may be called at any time.
type Sender struct {
	ctx     context.Context //nolint:containedctx // The life of the daemon: connections outlive steps.
	config  SenderConfig
	history []copies.Stats // of rounds while the container ran
	at      time.Time      // the last of them ended

	applied chan uint64 // rounds that are in place at the target; closed when the target says nothing more
	resumed chan error  // what became of what the target had
	asked   atomic.Bool // the target is to tell that

	listeners sync.WaitGroup // hear what the target says

	mu     sync.Mutex
	trees  *copies.Source  // finds changes; nil: it was not made
	data   *stream.Session // for rounds; nil: there are none
	out    *stream.Sections
	closed bool // data, by us
}

// NewSender makes a Sender that has done nothing yet. ctx is the life of the daemon.
func NewSender(ctx context.Context, config SenderConfig) *Sender {
	return &Sender{ctx: ctx, config: config}
}

// Make makes what finds changes, if it has not been made.
func (s *Sender) Make(ctx context.Context) error {
	if s.trees != nil {
		return nil
	}
	trees, err := s.config.Container.Trees(ctx)
	if err != nil {
		return err
	}
	defer files.LetGo(trees)
	source, err := copies.NewSource(copies.Config{Trees: trees, Dir: s.config.Dir, Workers: s.config.Cores,
		Mapped: s.mapped})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.trees = source
	s.mu.Unlock()
	go guard.Logged(s.config.Log, s.end)()
	return nil
}

// end gives everything back when the migration has ended: who hears the target may be using it
// until the connection is closed.
func (s *Sender) end() {
	<-s.config.Migration.Ended()
	s.Close()
	s.listeners.Wait()
	_ = s.trees.Close() // what it has made has no names
}

// Open opens the connection for rounds, if there is none.
func (s *Sender) Open(ctx context.Context) error {
	if err := s.Make(ctx); err != nil || s.data != nil {
		return err
	}
	data, err := s.config.Link.OpenMore(ctx, Purpose, s.config.Cores)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.data, s.out = data, stream.NewSections(data, s.config.Figures.Transferred)
	s.applied, s.resumed = make(chan uint64, 1), make(chan error, 1)
	s.mu.Unlock()
	s.listeners.Go(guard.Logged(s.config.Log, func() {
		err := guard.Do(func() error { return s.listen(keptLimits(s.config.Migration.OfferedBytes())) })
		guard.LogPanic(s.config.Log, err)
		close(s.applied)
		s.mu.Lock()
		closed := s.closed
		s.mu.Unlock()
		if !closed {
			s.config.Migration.Lost(err)
		}
	}))
	if err := data.SetCodec(s.config.Link.Codec()); err != nil {
		return err
	}
	return s.resume()
}

// openFor is Open for a step that cannot do without.
func (s *Sender) openFor(ctx context.Context) error {
	if err := s.Open(ctx); err != nil {
		return fmt.Errorf("open a connection for files to %s: %w", s.config.Target, err)
	}
	return nil
}

// listen hears which rounds are in place, and notices that the target ends the connection.
func (s *Sender) listen(limits files.Limits) error {
	for {
		section, err := s.data.Next()
		if err == nil && section.Kind == kindKept {
			if err = s.hearKept(section, limits); err == nil {
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
		case s.applied <- number:
		default:
			return errors.New("the target reported a round that it was not asked about")
		}
	}
}

// Close ends the connection for rounds. It may be called at any time, and again.
func (s *Sender) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.data != nil {
		s.closed = true
		_ = s.data.Close() // nothing is under way on it that matters
	}
}

// Round sends what has changed while the container runs. It is over when the target has it in place.
func (s *Sender) Round(ctx context.Context) error {
	began := time.Now()
	section, err := s.out.Begin(KindRound, "")
	if err != nil {
		return err
	}
	stats, err := s.trees.Round(ctx, section, nil)
	if err = errors.Join(err, section.Close()); err != nil {
		return fmt.Errorf("files of the container: %w", err)
	}
	if err := s.data.Push(); err != nil {
		return err
	}
	select {
	case _, open := <-s.applied:
		if !open {
			return errEnded
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	stats.Duration = time.Since(began)
	s.history, s.at = append(s.history, stats), time.Now()
	s.config.Figures.FileRound(stats, s.data.Counters().Sent[KindRound].WireBytes)
	return nil
}

var errEnded = errors.New("the target has ended the connection for files")

// resume has the target tell what it has of the files, if it has something. If the step is
// interrupted the connection is ended, and so is this.
func (s *Sender) resume() error {
	if !s.config.Migration.KeptThere() {
		return nil
	}
	key := s.trees.Key()
	s.asked.Store(true)
	if err := s.out.Whole(kindResume, "", key[:]); err != nil {
		return err
	}
	if err := s.data.Push(); err != nil {
		return err
	}
	select {
	case err := <-s.resumed:
		return err
	case <-s.applied:
		return errEnded
	}
}

// hearKept takes what the target has. It is called by who reads the connection, which waits for
// nothing else then.
func (s *Sender) hearKept(section stream.Section, limits files.Limits) error {
	if !s.asked.CompareAndSwap(true, false) {
		return errors.New("the target reported which files it has without a request")
	}
	err := s.trees.Resume(s.ctx, section, limits)
	s.resumed <- err
	return err
}
