package agent

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/memory/postcopy"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/memory/push"
	"github.com/godwit/godwit/internal/wire/stream"
)

// openPush opens the two connections over which pages follow that stay here. It is done before the
// freeze, which must not wait for that, and again whenever they broke.
func (s *source) openPush(ctx context.Context) error {
	pair := rand.Text() // a connection of an earlier try may come late
	var urgent *stream.Session
	opened := beside(ctx, func(ctx context.Context) (err error) {
		urgent, err = s.dialPush(ctx, push.PurposeUrgent, pair)
		return err
	})
	polite, err := s.dialPush(ctx, push.PurposePush, pair)
	if err := opened(err); err != nil {
		return errors.Join(err, closeSessions(urgent, polite))
	}
	if s.pusher == nil {
		d := push.NewSender()
		s.setPusher(d)
		s.move.tracker.Pushes(d.Report, d.Bytes)
	}
	s.pusher.Connected(urgent, polite)
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

func (s *source) setPusher(d *push.Sender) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pusher = d
}

// pushDialTimeout bounds one try to reach the target: a link that is down tells nobody, and the
// next try may succeed.
const pushDialTimeout = 5 * time.Second

func (s *source) dialPush(ctx context.Context, purpose, pair string) (*stream.Session, error) {
	ctx, cancel := context.WithTimeout(ctx, pushDialTimeout)
	defer cancel()
	options := stream.Options{Workers: 1}
	// The codec stays: a session that leaves the link nearly empty cannot see whether the link is the limit.
	switch purpose {
	case push.PurposeUrgent:
		options.Urgent, options.Codec = true, stream.S2
	case push.PurposePush:
		options.Polite, options.ExpectedBitsPerSecond, options.Codec = true, s.bandwidth(), s.link.Codec()
	}
	session, err := s.link.OpenWith(ctx, stream.Hello{Purpose: purpose, Pair: pair}, options)
	if err != nil {
		return nil, fmt.Errorf("connect to %s for the pages that stayed here: %w", s.target.Name, err)
	}
	return session, nil
}

// bandwidth is what the link is known to carry, in bits per second; 0: nothing is known.
func (s *source) bandwidth() float64 {
	if s.link.Data() == nil { // this agent was started after the container had been handed over
		return 0
	}
	return cmp.Or(s.linkSeen(), s.move.tracker.Link().BandwidthBitsPerSecond)
}

// mostSoon is how many pages follow before all others.
const mostSoon = 256

// beginPush begins to serve remote faults as soon as all that the restore needs has left: the restore
// may touch pages that stayed here. Pages that no process waits for stay until the container runs:
// sending them would take the processor from the restore.
func (s *source) beginPush(ctx context.Context) error {
	if s.memory == nil || s.pusher == nil {
		return nil
	}
	remote, hot := s.memory.Remote()
	count := push.Count(remote)
	s.pusher.Stays(count)
	if count == 0 {
		s.pusher.Disconnect()
		s.setPusher(nil)
		s.move.tracker.Pushes(nil, nil)
		return nil
	}
	soon, err := s.memory.Soon(mostSoon)
	if err != nil {
		s.agent.log.Warn("cannot tell which pages the container touches next; they are sent on "+
			"request", "container", s.definition.Name, "error", err)
	}
	stay := push.Stay{
		Remote: remote, Hot: hot, Soon: soon, Known: s.pages.Had, Key: s.pages.Key(), Waits: true,
	}
	if err := s.makeServer(ctx, stay); err != nil {
		return err
	}
	s.pusher.Serve(s.agent.ctx)
	return nil
}

// makeServer makes what gives the pages of the frozen processes.
func (s *source) makeServer(ctx context.Context, stay push.Stay) error {
	memory, err := s.frozen.Memory(ctx, s.spill.Whole())
	if err != nil {
		return err
	}
	stay.Copy, stay.Spill = push.Copy{Frozen: memory, Ran: s.frozen.HasRun}, s.spill
	stay.Gone = leavingMove{s.move}.Rebooted()
	stay.Silent, stay.Since = s.agent.config.peerTimeout(), time.Now()
	// by the target's clock: good enough for a report
	if resumed := s.move.record().Resumed; !resumed.IsZero() {
		stay.Since = resumed
	}
	return s.pusher.Make(s.agent.ctx, stay)
}

// pushPages stays until the target has all pages that stayed here. If the connections break it
// fails, and is tried again until an operator says that it need not.
func (s *source) pushPages(ctx context.Context) error {
	nothingStayed := s.pusher == nil && s.memory != nil
	if nothingStayed || s.move.record().Resolved {
		return s.endPush()
	}
	defer s.frozen.Marking(ctx, 0)()
	if s.pusher == nil || !s.pusher.Serving() {
		if err := s.reopenPush(ctx); err != nil {
			return err
		}
	}
	s.pusher.Begin()
	if s.memory != nil {
		remote, _ := s.memory.Remote()
		s.pusher.Spill(s.agent.ctx, remote)
	}
	err := s.pusher.Wait(ctx)
	if errors.Is(err, postcopy.ErrSource) { // to try again would not bring them back
		return &migration.Refusal{Problems: []migration.Problem{{
			What: "memory of " + s.definition.Name + " here", Why: err.Error(), Remedy: fmt.Sprintf(
				`it is lost; decide at %s: "godwit migration resolve %s --runs-at target `+
					`--missing-pages fail" or kill`, s.target.Name, s.id()),
		}}}
	}
	if err != nil {
		return fmt.Errorf("pages to %s: %w", s.target.Name, err)
	}
	if err := s.pusher.Incomplete(); err != nil {
		return fmt.Errorf("pages to %s: %w", s.target.Name, err)
	}
	if err := s.pusher.Killed(); err != nil {
		return s.lost(err)
	}
	return s.endPush()
}

// reopenPush goes on after the connections broke, or this agent was started again. The target says
// what it lacks.
func (s *source) reopenPush(ctx context.Context) error {
	if err := s.openPush(ctx); err != nil {
		return err
	}
	if err := s.spill.Tell(ctx); err != nil {
		return err
	}
	s.frozen.KeepAgain(ctx)
	if !s.pusher.Made() {
		if err := s.recoverSpill(ctx); err != nil {
			return err
		}
		if err := s.makeServer(ctx, push.Stay{}); err != nil {
			return err
		}
	}
	s.pusher.Serve(s.agent.ctx)
	return nil
}

// lost makes a refusal of a container that is no more at the target, whose copy here is whole.
func (s *source) lost(err error) error {
	return &migration.Refusal{Problems: []migration.Problem{{
		What: s.definition.Name + " at " + s.target.Name, Why: err.Error(), Remedy: s.decideRemedy(),
	}}}
}

// mayTakeBack refuses to let the container go on here that has been handed over, if it is not here
// any more, or if the target is well and takes its memory.
func (s *source) mayTakeBack(ctx context.Context, force bool) error {
	if !force && s.frozen.Killed(ctx) {
		return fmt.Errorf("%w: another program on this node has killed the frozen copy of %s: it would "+
			"exit as soon as it was thawed. Wait for %s, or decide that the container runs there; --force "+
			"ends the copy here", errRefused, s.definition.Name, s.target.Name)
	}
	if s.move.record().State != migration.Committed {
		return nil // the machine says whether there is something to resolve
	}
	s.frozen.KeepAgain(ctx)
	gone, err := s.frozen.Gone(ctx)
	if gone {
		return fmt.Errorf("%w: this node no longer has the frozen copy of %s: the container runs at %s or "+
			"nowhere", errRefused, s.definition.Name, s.target.Name)
	}
	s.mu.Lock() // a step may be at it
	d := s.pusher
	s.mu.Unlock()
	if err == nil && d != nil && d.Healthy(s.agent.config.peerTimeout()) {
		return fmt.Errorf("%w: %s appears to be receiving the memory of %s. If it has failed, this node "+
			"notices within seconds: try again then", errRefused, s.target.Name, s.definition.Name)
	}
	return err
}

// endPush ends it, wherever it is, and what was spilled for it. Doing nothing is success.
func (s *source) endPush() error {
	return s.endSpill(func() error {
		if s.pusher == nil {
			return nil
		}
		return s.pusher.Close()
	})
}
