package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/journal"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/node/rpc"
	transferfiles "github.com/godwit/godwit/internal/transfer/files"
	"github.com/godwit/godwit/internal/transfer/layers"
	"github.com/godwit/godwit/internal/transfer/memory/precopy"
	"github.com/godwit/godwit/internal/transfer/memory/push"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/stream"
)

// What one node may use of another. Peers have certificates, but one that has gone wrong must not
// take its neighbours with it.
const (
	maxPeerStreams = 128 // calls and sessions of one connection
	maxDataConns   = 512 // data connections of all peers
	maxConnsOfPeer = 128 // data connections of one peer
)

// peerService answers other nodes. Who they are is proven by their certificates; what they say is
// not trusted.
type peerService struct {
	unansweredToPeers
	*rpc.AuthorityService
	*rpc.LayerService
	*rpc.ProofService
	agent *Agent
}

// unansweredToPeers are calls that no service answers. See unansweredLocally.
type unansweredToPeers struct{ api.UnimplementedPeerServer }

func newPeerService(a *Agent) *peerService {
	return &peerService{
		AuthorityService: &rpc.AuthorityService{Identity: a.id, Log: a.log},
		LayerService:     &rpc.LayerService{Mover: a.layers, Nodes: a.peers, Rules: a.rules()},
		ProofService:     &rpc.ProofService{Proofs: a.proofs},
		agent:            a,
	}
}

func (s *peerService) Hello(ctx context.Context, request *api.HelloRequest) (*api.HelloReply, error) {
	from, err := rpc.Caller(ctx)
	if err != nil {
		return nil, err
	}
	reply, err := s.agent.peers.Answer(from, request)
	return reply, rpc.Error(err)
}

// Session is the source's side of one migration to this node.
func (s *peerService) Session(stream grpc.BidiStreamingServer[api.Envelope, api.Envelope]) error {
	from, err := rpc.Caller(stream.Context())
	if err != nil {
		return err
	}
	first, err := firstOf(stream, s.agent.config.peerTimeout())
	if err != nil {
		return err
	}
	if first.Offer == nil || first.Message == nil {
		return status.Error(codes.InvalidArgument, "a session begins with an offer")
	}
	if first.Offer.DryRun {
		return rpc.Error(s.agent.answerDryRun(stream, from, first.Offer))
	}
	s.agent.entries.Add(1) // the end of the agent waits for it
	m, err := s.agent.accept(from, first.Offer)
	defer func() {
		go s.agent.guarded(func() {
			defer s.agent.entries.Done()
			s.agent.auditSession(stream.Context(), first.Offer, m, err)
		})()
	}()
	if err != nil {
		return rpc.Error(err)
	}
	work, ok := m.work().(*target)
	if !ok {
		return status.Error(codes.Internal, "a migration to this node has no target")
	}
	err = work.control.attach(stream, work.hears, func() { s.agent.deliver(m, first.Message) })
	m.tell(migration.PeerLost{Error: plain(err)})
	return nil
}

// firstOf receives the first message of a session. A peer that opens one and says nothing is not waited for.
func firstOf(stream grpc.BidiStreamingServer[api.Envelope, api.Envelope],
	patience time.Duration) (*api.Envelope, error) {
	var envelope *api.Envelope
	first := guard.Go(func() (err error) { // It ends with the stream, and that with the caller.
		envelope, err = stream.Recv()
		return err
	})
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-first:
		return envelope, err
	case <-timer.C:
		return nil, status.Errorf(codes.DeadlineExceeded,
			"a session begins with an offer, and none came for %s", patience)
	}
}

// peerMove finds a migration that the calling node has to do with.
func (s *peerService) peerMove(ctx context.Context, id string) (*move, error) {
	from, err := rpc.Caller(ctx)
	if err != nil {
		return nil, err
	}
	m, err := s.agent.moves.find(id)
	if err != nil {
		return nil, rpc.Error(err)
	}
	if m.tracker.Spec.Source != from && m.tracker.Spec.Target != from {
		return nil, status.Errorf(codes.PermissionDenied, "node %s does not take part in migration %s",
			from, id)
	}
	return m, nil
}

// Tell hands a message to a migration. A target that says that the container of a migration runs, of which
// this node knows nothing, has the only copy: what is forgotten had come to its end, see prune. Unless only
// the journal is lost, and the container is here still.
func (s *peerService) Tell(ctx context.Context, request *api.TellRequest) (*api.TellReply, error) {
	if request.Message == nil {
		return nil, status.Error(codes.InvalidArgument, "no message")
	}
	m, err := s.peerMove(ctx, request.Migration)
	if status.Code(err) == codes.NotFound && request.Message.Kind == string(migration.KindRunning) {
		if err := s.agent.moves.rebuilder.LeavesYet(request.Migration); err != nil {
			return nil, rpc.Error(err)
		}
		return &api.TellReply{Answer: &api.Message{Kind: string(migration.KindConfirm)}}, nil
	}
	if err != nil {
		return nil, err
	}
	if migration.MessageKind(request.Message.Kind).NeedsSession() {
		return nil, status.Errorf(codes.InvalidArgument, "message %.40q was sent outside of a session",
			request.Message.Kind)
	}
	s.agent.deliver(m, request.Message)
	reply := &api.TellReply{}
	if m.tracker.Spec.Side == migration.Source {
		reply.Word = string(m.record().SourceWord())
	}
	return reply, nil
}

func (s *peerService) Durable(ctx context.Context, request *api.DurableRequest) (*api.DurableReply, error) {
	m, err := s.peerMove(ctx, request.Migration)
	lost := status.Errorf(codes.DataLoss,
		"%s has lost its journal of migration %s, and does not know whether it has all files",
		s.agent.self.Name, request.Migration)
	// it stays lost: a source that only tried again would keep its copy frozen for ever
	if status.Code(err) == codes.NotFound {
		return nil, lost
	}
	if err != nil {
		return nil, err
	}
	switch record := m.record(); {
	case record.Decision != migration.NeverRan || record.State != migration.Done:
	case record.Overruled:
		return nil, status.Errorf(codes.DataLoss,
			"an operator has taken the container of migration %s back: it is no longer at %s",
			request.Migration, s.agent.self.Name)
	default: // it was asked for the outcome since it lost its journal
		return nil, lost
	}
	if err := s.agent.sameState(request.Incarnation); err != nil {
		return nil, err
	}
	if m.record().Decision != migration.Ran {
		return nil, status.Errorf(codes.FailedPrecondition, "migration %s has not brought a container here",
			request.Migration)
	}
	if err := s.agent.sync(m.journal); err != nil {
		return nil, rpc.Error(err)
	}
	return &api.DurableReply{}, nil
}

// sameState refuses to promise anything for the state that took a container, if this is another one: a copy
// of a state on another machine, or one from a backup, has journals of containers that are not here.
func (a *Agent) sameState(expected string) error {
	if own := a.incarnation(); expected != "" && expected != own {
		return status.Errorf(codes.DataLoss,
			"%s no longer has the state that accepted the container: expected %s, found %s",
			a.self.Name, expected, own)
	}
	return nil
}

// sync makes sure that what came with a container is on disk. If that cannot be known any more the
// source must keep its copy, and an operator has to decide.
func (a *Agent) sync(journal *journal.Journal) error {
	if journal.Lost(a.boot) {
		return status.Errorf(codes.DataLoss,
			"%s was booted again before all files of the container were on disk", a.self.Name)
	}
	if err := files.Sync(a.config.StateDir); err != nil {
		return err
	}
	if err := a.syncFiles(journal.Definition); err != nil {
		return err
	}
	if err := a.syncImages(journal.Definition); err != nil { // the container is nothing without them
		return err
	}
	if err := a.volumes.Sync(journal.Definition); err != nil {
		return err
	}
	return journal.Synced()
}

// syncFiles brings to the disk what a container of an engine with a directory of its own has
// written, which may be on another disk. One that has been removed since nobody needs.
func (a *Agent) syncFiles(definition engine.Definition) error {
	if definition.EngineName == "" {
		return nil // it is in the state directory
	}
	ctx, cancel := context.WithTimeout(a.ctx, a.config.callTimeout())
	defer cancel()
	one, err := a.engines.Lookup(definition)
	if err != nil {
		return err
	}
	trees, err := one.Trees(ctx, definition.ID)
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sync files of container %s: %w", definition.Name, err)
	}
	defer files.LetGo(trees)
	for _, tree := range trees {
		if tree.Kind != files.Writable {
			continue // volumes: see volumes.Sync; the private files are in the state directory
		}
		if err := files.Sync(tree.Path); err != nil {
			return err
		}
	}
	return nil
}

// syncImages brings image layers to the disk, which may be an engine's own, and that on another disk.
func (a *Agent) syncImages(definition engine.Definition) error {
	images, err := a.imagesOf(definition)
	if err != nil || images == nil {
		return errors.Join(err, a.images.Sync())
	}
	ctx, cancel := context.WithTimeout(a.ctx, a.config.callTimeout())
	defer cancel()
	return images.Sync(ctx)
}

func (s *peerService) Release(ctx context.Context, request *api.ReleaseRequest) (*api.ReleaseReply, error) {
	from, err := rpc.Caller(ctx)
	if err != nil {
		return nil, err
	}
	address, err := netip.ParseAddr(request.Address)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "address %.60q: %v", request.Address, err)
	}
	if err := migration.CheckContainerID(request.Container); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if !s.agent.locations.MayRelease(from, address) {
		// That node retries. Meanwhile the node that had the container may tell that it has it no longer.
		return nil, status.Errorf(codes.FailedPrecondition,
			"as far as %s knows, node %s does not have the container of %s", s.agent.self.Name, from, address)
	}
	return &api.ReleaseReply{}, rpc.Error(s.agent.releaseAddress(ctx, address, request.Container))
}

// Presence reports whether this node has a container of the embedded engine, or is about to get it.
func (s *peerService) Presence(ctx context.Context, request *api.PresenceRequest) (*api.PresenceReply,
	error) {
	if err := migration.CheckContainerID(request.Container); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	state, err := s.agent.restarts.Holding(ctx, request.Container)
	return &api.PresenceReply{State: state}, rpc.Error(err)
}

// Removed forgets what is kept of a container that is no more. It is nothing that anybody would
// miss, so any node may say so.
func (s *peerService) Removed(ctx context.Context, request *api.RemovedRequest) (*api.RemovedReply, error) {
	from, err := rpc.Caller(ctx)
	if err != nil {
		return nil, err
	}
	s.agent.residuals.Drop(request.Container)
	return &api.RemovedReply{}, rpc.Error(s.agent.bridges.Removed(from, request.Container))
}

// releaseAddress takes an address back whose container was removed elsewhere. Only the lease's own
// container gives it back, and not while it is here.
func (a *Agent) releaseAddress(ctx context.Context, address netip.Addr, container string) error {
	if a.leases.Of(address) != container {
		return nil
	}
	containers, err := a.lists.Addressed(ctx)
	if err != nil {
		return err // it may be here
	}
	if slices.ContainsFunc(containers,
		func(c engine.Container) bool { return c.Definition.ID == container }) {
		return fmt.Errorf("%w: container %.12s is on this node", errInvalid, container)
	}
	if err := a.moves.refuse(container); err != nil {
		return err
	}
	a.locations.Released(address)
	return errors.Join(a.network.Unroute(address), a.network.ReleaseLease(container))
}

// serveData hands data connections to the migrations that they belong to.
func (a *Agent) serveData(ctx context.Context, listener *wire.Listener) {
	room := newConnRoom(maxDataConns, maxConnsOfPeer)
	for {
		conn, err := listener.AcceptData(ctx)
		if err != nil {
			if ctx.Err() == nil {
				a.log.Error("data connections", "error", err)
			}
			return
		}
		if !room.enter(conn.Peer().Name) {
			a.log.Warn("data connection refused: there are too many", "from", conn.Peer().Name)
			conn.Close()
			continue
		}
		go a.guarded(func() {
			defer room.leave(conn.Peer().Name)
			if err := guard.Do(func() error { return a.serveConn(ctx, conn) }); err != nil {
				a.log.Info("data connection ended", "from", conn.Peer().Name, "error", err)
				a.logPanic(err)
			}
		})()
	}
}

func (a *Agent) serveConn(ctx context.Context, conn *wire.Conn) error {
	defer conn.Close()
	var work *target
	var outgoing *layers.Transfer
	check := func(hello stream.Hello) (options stream.Options, err error) {
		options = a.streamOptions()
		switch hello.Purpose {
		case purposeMeasure:
			return options, nil
		case purposeStage:
			return options, migration.CheckID(hello.Migration)
		case purposeLayers:
			if err = a.rules().MayRead(conn.Peer().Name); err != nil {
				return options, err
			}
			outgoing, err = a.layers.Transfer(hello.Migration, conn.Peer().Name)
			options.Limiter = outgoing.Shares()
			return options, err
		}
		work, err = a.targetOf(hello, conn.Peer().Name)
		return options, err
	}
	session, hello, err := stream.AnswerWith(ctx, conn, check)
	if err != nil {
		return err
	}
	defer session.Close()
	switch hello.Purpose {
	case purposeMeasure:
		return answerProbes(ctx, session)
	case precopy.PurposePages:
		return work.memory.Attach(ctx, session)
	case transferfiles.Purpose:
		return work.files.Attach(ctx, session)
	case purposeStage:
		return a.stagedCopies.Serve(ctx, session, conn.Peer().Name, hello.Migration)
	case purposeLayers:
		return a.layers.Serve(ctx, session, outgoing, conn.Peer().Name)
	case push.PurposeUrgent, push.PurposePush:
		return work.memory.AttachPush(ctx, hello, session)
	}
	if !work.link.Attach(session, a.log) {
		return errors.New("a second data connection for one migration")
	}
	return a.attend(ctx, work)
}

// answerProbes serves a connection over which a peer measures the link, for no longer than that can take.
func answerProbes(ctx context.Context, session *stream.Session) error {
	limit := time.AfterFunc(2*measureTimeout, func() { _ = session.Close() })
	defer limit.Stop()
	_, err := session.Next() // probes are answered while it reads
	if errors.Is(err, io.EOF) || errors.Is(err, stream.ErrTruncated) || ctx.Err() != nil {
		return nil // who measures just ends it
	}
	return err
}

// attend keeps a data connection until the migration has ended here, and then until the source has
// heard so: the end of the connection would tell it sooner, but not why.
func (a *Agent) attend(ctx context.Context, work *target) error {
	if err := waitFor(ctx, work.move.done); err != nil {
		return err
	}
	session := work.control.current()
	if session == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lingerAtMost)
	defer cancel()
	_ = waitFor(ctx, session.gone) // Whether it has heard or not, it is over.
	return nil
}

// targetOf finds the migration that a data connection is for.
func (a *Agent) targetOf(hello stream.Hello, from string) (*target, error) {
	purposes := []string{purposeMigration, precopy.PurposePages, transferfiles.Purpose, push.PurposeUrgent,
		push.PurposePush}
	if !slices.Contains(purposes, hello.Purpose) {
		return nil, fmt.Errorf("unknown purpose of a data connection: %.40q", hello.Purpose)
	}
	m, err := a.moves.find(hello.Migration)
	if err != nil {
		return nil, err
	}
	work, ok := m.work().(*target)
	late := hello.Purpose == push.PurposeUrgent || hello.Purpose == push.PurposePush
	// a source may not know that an operator has ended it here
	over := m.ended() && (!late || m.record().Result != migration.Moved)
	if !ok || m.tracker.Spec.Source != from || over {
		return nil, fmt.Errorf("migration %.40q does not bring anything from %s here", hello.Migration, from)
	}
	return work, nil
}
