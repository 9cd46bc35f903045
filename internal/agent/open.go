package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/godwit/godwit/internal/access"
	"github.com/godwit/godwit/internal/audit"
	"github.com/godwit/godwit/internal/cluster"
	"github.com/godwit/godwit/internal/cluster/measure"
	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine/embedded"
	"github.com/godwit/godwit/internal/files/image"
	"github.com/godwit/godwit/internal/gc"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/node/supervisor"
	"github.com/godwit/godwit/internal/reserve"
	"github.com/godwit/godwit/internal/residual"
	"github.com/godwit/godwit/internal/sampling"
	"github.com/godwit/godwit/internal/statedir"
	"github.com/godwit/godwit/internal/transfer/kept"
	"github.com/godwit/godwit/internal/wire/identity"
)

// Run is the life of an agent, until ctx ends. Containers go on without it; migrations that are
// under way are undone, or brought to their end if they are that far.
func Run(ctx context.Context, config Config) error {
	gc.Usual()
	manager := supervisor.New(config.Log)
	rights, err := config.Rights.Resolve(config.Group)
	if err != nil {
		return err
	}
	opened := time.Now()
	a, err := newAgent(ctx, config)
	if err != nil {
		return err
	}
	defer a.close()
	a.supervisor, a.rights = manager, rights
	return serve(ctx, a, opened)
}

func newAgent(ctx context.Context, config Config) (*Agent, error) {
	state, err := takeState(config)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx)) // When it shall end it has things to do yet.
	a := &Agent{
		config: config, log: config.Log, ctx: ctx, stop: stop,
		calls: access.NewRecord(
			audit.New(config.StateDir, audit.Users), audit.New(config.StateDir, audit.Nodes), config.Log),
		here: here{
			state: state, cores: runtime.NumCPU(),
			spare: durable.NewSpare(filepath.Join(config.StateDir, "migrations")),
		},
		migrations:  migrations{reservations: reserve.New()},
		copiesAhead: copiesAhead{residuals: residual.New(residual.Config{Limit: config.ResidualLimit})},
		measured:    measured{machine: sampling.NewMachine(runtime.NumCPU())},
	}
	err = os.MkdirAll(filepath.Join(config.StateDir, "migrations"), 0o755)
	if err != nil {
		err = fmt.Errorf("directory of the agent: %w", err)
	} else {
		err = open(a)
	}
	if err != nil {
		stop()
		return nil, errors.Join(err, state.Close())
	}
	return a, nil
}

// takeState makes sure that nobody else writes what this agent is about to read and to change. An
// agent of a version without locks still answers at its socket.
func takeState(config Config) (*statedir.Dir, error) {
	state, err := statedir.Open(config.StateDir, config.RunDir)
	if err != nil {
		return nil, err
	}
	if path := access.SocketPath(config.RunDir); access.Answers(path) {
		err := fmt.Errorf("an agent is already running on this node: it answers at %s", path)
		return nil, errors.Join(err, state.Close())
	}
	if state.Renewed != "" {
		config.Log.Info("the state has a new incarnation", "incarnation", state.Incarnation, "why",
			state.Renewed)
	}
	return state, nil
}

// open makes the parts of the agent from what is on disk.
func open(a *Agent) error {
	var err error
	if a.id, err = identity.Load(a.config.StateDir); err != nil {
		return err
	}
	a.self = a.id.Node
	if a.boot, err = kernel.BootID(); err != nil {
		return err
	}
	if a.kept, err = kept.New(kept.Config{
		StateDir: a.config.StateDir, Keep: a.config.KeepBroken, Log: a.log,
	}); err != nil {
		return err
	}
	if a.images, err = image.Open(a.config.StateDir); err != nil {
		return err
	}
	spool, err := image.OpenSpool(filepath.Join(a.config.StateDir, "spool"))
	if err != nil {
		return err
	}
	a.embedded, err = embedded.New(embedded.Config{
		StateDir: a.config.StateDir, RunDir: a.config.RunDir, Images: a.images, State: a.incarnation(),
	})
	if err != nil {
		return err
	}
	unopened, err := openEngines(a)
	if err != nil {
		return err
	}
	openMoves(a)
	a.lists = newLists(a)
	if a.peers, err = newPeers(a); err != nil {
		return err
	}
	a.links = measure.NewLinks(a.id, a.peers, a.streamOptions())
	a.layers = newLayers(a, spool)
	a.proofs = newProver(a)
	a.volumes = newVolumes(a)
	if err := openNetwork(a); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	a.leases = newLeases(a)
	a.locations = newLocations(a)
	a.peers.Overlays.Recall(a.network.Tunnel().Keys())
	a.doubles, a.restarts = newDoubles(a), newRestarts(a)
	a.peers.Attach(told{a.locations, a.doubles}, greeted{a}, greeted{a})
	a.members = cluster.NewMembers(a.peers, a.moves.UnderWay)
	openAttachments(a, unopened)
	setPeers(a)
	a.leases.TakeBack(a.ctx, a.embedded)
	if err := a.attachments.Reconcile(a.ctx); err != nil {
		return fmt.Errorf("containers of this node: %w", err)
	}
	a.stages, a.stagedCopies = newStages(a), newStagedCopies(a)
	a.admission = newAdmission(a)
	a.departures = newDepartures(a)
	openSamples(a)
	if a.placements, err = openPlacements(a); err != nil {
		return err
	}
	if err := a.recovery.All(); err != nil {
		return err
	}
	a.recovery.Rebuild(a.ctx, a.embedded) // which asks nobody
	return nil
}

func openSamples(a *Agent) {
	a.samples = sampling.New(a.ctx, a.self.Name, sampledNode{a}, a.log)
	a.experience = sampling.NewExperience(a.machine, a.samples.Last)
}
