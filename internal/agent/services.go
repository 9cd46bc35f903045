package agent

import (
	"net/netip"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/access"
	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/node/containers"
	"github.com/godwit/godwit/internal/node/disk"
	"github.com/godwit/godwit/internal/node/rpc"
	"github.com/godwit/godwit/internal/wire"
)

// maxPeerStreams bounds calls and sessions of one connection of a peer. Peers have certificates, but one that
// has gone wrong must not take its neighbours with it.
const maxPeerStreams = 128

// localService answers the command line on this node.
type localService struct {
	unansweredLocally
	*rpc.AuditService
	*rpc.ContainerService
	*rpc.ImageService
	*rpc.MemberService
	*rpc.MigrationService
	*rpc.NodeService
	*rpc.PolicyService
	*rpc.StageService
	*rpc.TopService
	*rpc.VolumeService
}

// unansweredLocally are calls that no service answers. They lie deeper than those of services, which so hide
// them.
type unansweredLocally struct{ api.UnimplementedAgentServer }

func newLocalService(a *Agent) *localService {
	return &localService{
		AuditService: &rpc.AuditService{Calls: a.calls},
		ContainerService: &rpc.ContainerService{
			Containers: a.containers, Life: newLife(a), Engines: a.engines, Restarts: a.restarts,
			Moves: a.moves, Look: a.samples.Look, MayRun: a.rights.MayRun,
			Alarms: func() []*api.Alarm { return a.moves.Alarms(a.doubles.Alarms()) },
		},
		ImageService:  &rpc.ImageService{Store: a.images, Containers: a.embedded},
		MemberService: &rpc.MemberService{Members: a.members},
		MigrationService: &rpc.MigrationService{
			Moves: a.moves, Departing: departing{a.departures, a}, Operators: a.operators,
		},
		NodeService: &rpc.NodeService{
			Self: a.self, Agent: a.config.Version, Authority: a.id.Authority, Elsewhere: a.members.Elsewhere,
			Peers: a.peers, Measure: a.links.Measure, Overlay: overlay{a}.describe, Log: a.log,
		},
		PolicyService: &rpc.PolicyService{File: a.config.PolicyFile, Obeyed: a.config.Policy},
		StageService: &rpc.StageService{
			Node: a.self.Name, Begins: stagingNode{a}, Placements: a.placements, Made: a.stages,
			Copies: a.stagedCopies, Residuals: a.residuals, Kept: a.kept,
		},
		TopService: &rpc.TopService{Node: a.self.Name, Containers: a.containers, Samples: a.samples,
			Moving: a.moves.Moving, Log: a.log},
		VolumeService: &rpc.VolumeService{Store: a.embedded},
	}
}

// newLife makes and removes containers for users.
func newLife(a *Agent) *containers.Life {
	return containers.New(containers.Config{
		Images: a.images, Engines: a.engines, Own: a.embedded, Idle: a.containers,
		Reservations: a.reservations, Leases: a.leases, Network: a.network, Stages: stagingNode{a},
		CheckVolumes: a.moves.CheckVolumes, Attach: a.attachments.Attach, Ran: a.restarts.Ran,
		Changed: a.lists.Changed, Removed: newRemovals(a).Tell,
	})
}

// newRemovals tells other nodes of removed containers.
func newRemovals(a *Agent) *containers.Removals {
	return &containers.Removals{Nodes: a.peers, Timeout: a.config.callTimeout(), Life: a.ctx, Log: a.log}
}

// peerService answers other nodes. Who they are is proven by their certificates; what they say is
// not trusted.
type peerService struct {
	unansweredToPeers
	*rpc.AuthorityService
	*rpc.CopyService
	*rpc.LayerService
	*rpc.NeighbourService
	*rpc.OutcomeService
	*rpc.ProofService
	*rpc.SessionService
}

// unansweredToPeers are calls that no service answers. See unansweredLocally.
type unansweredToPeers struct{ api.UnimplementedPeerServer }

func newPeerService(a *Agent) *peerService {
	return &peerService{
		AuthorityService: &rpc.AuthorityService{Identity: a.id, Log: a.log},
		CopyService: &rpc.CopyService{
			Placements: a.placements, Copies: a.stagedCopies, Residuals: a.residuals,
		},
		LayerService: &rpc.LayerService{Mover: a.layers, Nodes: a.peers, Rules: a.rules()},
		NeighbourService: &rpc.NeighbourService{
			Self: a.self.Name, Greeted: a.peers, Presents: a.restarts,
			Released: &containers.Addresses{
				Leases: a.leases, Locations: a.locations, Network: a.network, Addressed: a.lists.Addressed,
				Refuse: a.moves.Refuse,
			},
			Forget: func(from, container string) error {
				a.residuals.Drop(container)
				return a.bridges.Removed(from, container)
			},
		},
		OutcomeService: &rpc.OutcomeService{
			Node: a.self.Name, Incarnation: a.incarnation(), Moves: a.moves, LeavesYet: a.recovery.LeavesYet,
			Sync: disk.New(disk.Config{
				Node: a.self.Name, Boot: a.boot, StateDir: a.config.StateDir, Engines: a.engines,
				Images: a.images, Volumes: a.volumes, Timeout: a.config.callTimeout(), Life: a.ctx,
			}).Sync,
		},
		ProofService: &rpc.ProofService{Proofs: a.proofs},
		SessionService: &rpc.SessionService{
			Arriving: arrivals{a}, Admission: a.admission, Calls: a.calls, Silence: a.config.peerTimeout(),
			Life: a.ctx, Log: a.log,
		},
	}
}

// newServers makes the servers for the command line and for other nodes.
func newServers(a *Agent, peers *peerService) (local, remote *grpc.Server) {
	// The outermost first: a panic is kept, too.
	options := append(a.calls.Options(access.Audited()), rpc.Recovering(a.log)...)
	options = append(options, a.rights.Authorizing()...)
	local = grpc.NewServer(append(options, grpc.Creds(access.NewCredentials()),
		rpc.Noticing(access.Audited(), func() { a.lists.Changed(a.embedded) }))...)
	api.RegisterAgentServer(local, newLocalService(a))
	options = append(a.calls.Options(access.AuditedOfNodes()), rpc.Recovering(a.log)...)
	options = append(options, wire.ServerOptions()...)
	remote = grpc.NewServer(append(options, grpc.MaxConcurrentStreams(maxPeerStreams))...)
	api.RegisterPeerServer(remote, peers)
	return local, remote
}

// alive returns when the agent's main locks can be taken.
func alive(a *Agent) func() {
	return func() {
		a.moves.List()
		a.peers.List()
		a.locations.MayRelease("", netip.Addr{})
	}
}
