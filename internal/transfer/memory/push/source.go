package push

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
	"github.com/godwit/godwit/internal/memory/postcopy"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/progress"
	"github.com/godwit/godwit/internal/wire/stream"
)

// FrozenCopy is the frozen copy of the container.
type FrozenCopy interface {
	// Memory opens the memory of its processes. If its pages are elsewhere, too, an engine that does not
	// answer is no error.
	Memory(ctx context.Context, elsewhere bool) (Frozen, error)
	// HasRun says that the processes have run since they were frozen, if they have.
	HasRun() error
	// Here reports whether the processes are here.
	Here(ctx context.Context) bool
	// KeepAgain protects the copy, whatever has become of its protection.
	KeepAgain(ctx context.Context)
	// Marking shows that the container has moved after a while, unless stop is called before.
	Marking(ctx context.Context, after time.Duration) (stop func())
}

// Link opens data connections to the target.
type Link interface {
	OpenWith(ctx context.Context, hello stream.Hello, options stream.Options) (*stream.Session, error)
	// Codec is what gets most through the link, as far as is known.
	Codec() stream.Codec
	// BitsPerSecond is what the link is known to carry; 0: nothing is known.
	BitsPerSecond() float64
}

// Migration is the migration whose pages follow.
type Migration interface {
	Record() migration.Record
	// Rebooted reports whether this node was, since the migration began.
	Rebooted() bool
}

// Rounds has what was not sent before the handover; rounds.Rounds does.
type Rounds interface {
	Remote() (remote, hot []memory.TaskMap)
	Soon(most int) ([]memory.RemoteFault, error)
}

// Sent has what the target had of pages before; precopy.Sender does.
type Sent interface {
	Had(task memory.Task, address uint64, page []byte) bool
	Key() pipeline.Key
}

// SourceConfig is what a Source is made of.
type SourceConfig struct {
	Copy      FrozenCopy
	Link      Link
	Migration Migration
	Figures   *progress.Tracker
	Spill     SpillConfig
	Name      string // of the container
	Target    string // the name of the other node
	Decide    string // what an operator can do who has to decide
	Silence   time.Duration
	Log       *slog.Logger
}

// Source sends the pages that stayed at the source of a migration, until the target has all of them: over two
// connections, which it opens again when they broke, also in an agent that was started again.
type Source struct {
	ctx    context.Context //nolint:containedctx // The life of the agent: pages follow beyond a step.
	config SourceConfig
	spill  *Spill // the pages are on the disk, too; nil: they are not to be

	mu     sync.Mutex
	sender *Sender // nil: no page has stayed here, as far as is known
}

// NewSource makes a Source that has no connection yet. ctx is the life of the agent.
func NewSource(ctx context.Context, config SourceConfig) *Source {
	return &Source{ctx: ctx, config: config}
}

// current is what sends; nil: no page has stayed here, as far as is known.
func (s *Source) current() *Sender {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sender
}

func (s *Source) set(d *Sender) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sender = d
}

// Open opens the two connections over which pages follow that stay here. It is done before the
// freeze, which must not wait for that, and again whenever they broke.
func (s *Source) Open(ctx context.Context) error {
	pair := rand.Text() // a connection of an earlier try may come late
	var urgent *stream.Session
	opened := guard.Beside(ctx, func(ctx context.Context) (err error) {
		urgent, err = s.dial(ctx, PurposeUrgent, pair)
		return err
	})
	polite, err := s.dial(ctx, PurposePush, pair)
	if err := opened(err); err != nil {
		return errors.Join(err, closeSessions(urgent, polite))
	}
	if s.current() == nil {
		d := NewSender()
		s.set(d)
		s.config.Figures.Pushes(d.Report, d.Bytes)
	}
	s.current().Connected(urgent, polite)
	return nil
}

// closeSessions closes those that there are.
func closeSessions(sessions ...*stream.Session) (err error) {
	for _, session := range sessions {
		if session != nil {
			err = errors.Join(err, session.Close())
		}
	}
	return err
}

// dialTimeout bounds one try to reach the target: a link that is down tells nobody, and the
// next try may succeed.
const dialTimeout = 5 * time.Second

func (s *Source) dial(ctx context.Context, purpose, pair string) (*stream.Session, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	options := stream.Options{Workers: 1}
	// The codec stays: a session that leaves the link nearly empty cannot see whether the link is the limit.
	switch purpose {
	case PurposeUrgent:
		options.Urgent, options.Codec = true, stream.S2
	case PurposePush:
		options.Polite, options.ExpectedBitsPerSecond, options.Codec =
			true, s.config.Link.BitsPerSecond(), s.config.Link.Codec()
	}
	session, err := s.config.Link.OpenWith(ctx, stream.Hello{Purpose: purpose, Pair: pair}, options)
	if err != nil {
		return nil, fmt.Errorf("connect to %s for the pages that stayed here: %w", s.config.Target, err)
	}
	return session, nil
}

// mostSoon is how many pages follow before all others.
const mostSoon = 256

// Begin begins to serve remote faults as soon as all that the restore needs has left: the restore
// may touch pages that stayed here. Pages that no process waits for stay until the container runs:
// sending them would take the processor from the restore. Without connections nothing stays here.
func (s *Source) Begin(ctx context.Context, rounds Rounds, sent Sent) error {
	d := s.current()
	if d == nil {
		return nil
	}
	remote, hot := rounds.Remote()
	count := Count(remote)
	d.Stays(count)
	if count == 0 {
		d.Disconnect()
		s.set(nil)
		s.config.Figures.Pushes(nil, nil)
		return nil
	}
	soon, err := rounds.Soon(mostSoon)
	if err != nil {
		s.config.Log.Warn("cannot tell which pages the container touches next; they are sent on "+
			"request", "container", s.config.Name, "error", err)
	}
	stay := Stay{Remote: remote, Hot: hot, Soon: soon, Known: sent.Had, Key: sent.Key(), Waits: true}
	if err := s.makeServer(ctx, d, stay); err != nil {
		return err
	}
	d.Serve(s.ctx)
	return nil
}

// makeServer makes what gives the pages of the frozen processes.
func (s *Source) makeServer(ctx context.Context, d *Sender, stay Stay) error {
	frozen, err := s.config.Copy.Memory(ctx, s.spill.Whole())
	if err != nil {
		return err
	}
	stay.Copy, stay.Spill = Copy{Frozen: frozen, Ran: s.config.Copy.HasRun}, s.spill
	stay.Gone = s.config.Migration.Rebooted()
	stay.Silent, stay.Since = s.config.Silence, time.Now()
	// by the target's clock: good enough for a report
	if resumed := s.config.Migration.Record().Resumed; !resumed.IsZero() {
		stay.Since = resumed
	}
	return d.Make(s.ctx, stay)
}

// Run stays until the target has all pages that stayed here. If the connections break it
// fails, and is tried again until an operator says that it need not. rounds are those that have left pages
// here; nil: an earlier agent has, and the target says which.
func (s *Source) Run(ctx context.Context, rounds Rounds) error {
	d := s.current()
	nothingStayed := d == nil && rounds != nil
	if nothingStayed || s.config.Migration.Record().Resolved {
		return s.End()
	}
	defer s.config.Copy.Marking(ctx, 0)()
	if d == nil || !d.Serving() {
		if err := s.reopen(ctx); err != nil {
			return err
		}
		d = s.current()
	}
	d.Begin()
	if rounds != nil {
		remote, _ := rounds.Remote()
		d.Spill(s.ctx, remote)
	}
	if err := s.outcome(d, d.Wait(ctx)); err != nil {
		return err
	}
	return s.End()
}

// outcome is what has become of pages that are not sent any more, for whatever reason.
func (s *Source) outcome(d *Sender, err error) error {
	if errors.Is(err, postcopy.ErrSource) { // to try again would not bring them back
		return refusal("memory of "+s.config.Name+" here", err, fmt.Sprintf(
			`it is lost; decide at %s: "godwit migration resolve %s --runs-at target `+
				`--missing-pages fail" or kill`,
			s.config.Target, s.config.Spill.Migration))
	}
	if err != nil {
		return fmt.Errorf("pages to %s: %w", s.config.Target, err)
	}
	if err := d.Incomplete(); err != nil {
		return fmt.Errorf("pages to %s: %w", s.config.Target, err)
	}
	if err := d.Killed(); err != nil { // the copy here is whole
		return refusal(s.config.Name+" at "+s.config.Target, err, s.config.Decide)
	}
	return nil
}

func refusal(what string, why error, remedy string) error {
	return &migration.Refusal{Problems: []migration.Problem{{What: what, Why: why.Error(), Remedy: remedy}}}
}

// reopen goes on after the connections broke, or this agent was started again. The target says
// what it lacks.
func (s *Source) reopen(ctx context.Context) error {
	if err := s.Open(ctx); err != nil {
		return err
	}
	if err := s.spill.Tell(ctx); err != nil {
		return err
	}
	s.config.Copy.KeepAgain(ctx)
	d := s.current()
	if !d.Made() {
		if err := s.recoverSpill(ctx); err != nil {
			return err
		}
		if err := s.makeServer(ctx, d, Stay{}); err != nil {
			return err
		}
	}
	d.Serve(s.ctx)
	return nil
}

// Healthy reports whether the target has taken pages not longer ago than that. A step may be at it.
func (s *Source) Healthy(limit time.Duration) bool {
	d := s.current()
	return d != nil && d.Healthy(limit)
}

// WantSpill has what follows be spilled.
func (s *Source) WantSpill() {
	s.spill = NewSpill(s.config.Spill)
	s.spill.Want()
}

// recoverSpill finds what an earlier agent has spilled, or was about to.
func (s *Source) recoverSpill(ctx context.Context) error {
	path := s.config.Spill.Path
	for _, name := range []string{path, postcopy.SpillBegun(path)} {
		if _, err := os.Lstat(name); err == nil && s.spill == nil {
			found := NewSpill(s.config.Spill)
			if err := found.Recover(ctx, !s.config.Copy.Here(ctx)); err != nil {
				return err
			}
			s.spill = found
		}
	}
	return nil
}

// End ends the push, wherever it is, and removes what was spilled for it. The writer reads the frozen
// processes, and who serves reads the file: the processes are let go of between the two. Doing nothing is
// success.
func (s *Source) End() error {
	s.spill.Halt()
	var err error
	if d := s.current(); d != nil {
		err = d.Close()
	}
	err = errors.Join(err, s.spill.Close())
	return errors.Join(err, postcopy.RemoveSpill(s.config.Spill.Path))
}
