package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/wire/identity"
)

// makeOffer describes a container that is to be moved, so that the target can tell whether it can take it.
func (a *Agent) makeOffer(ctx context.Context, spec migration.Spec, definition engine.Definition,
	volumes []migration.VolumeMoved) (*api.Offer, error) {
	protocol, err := a.peers.Protocol(spec.Target)
	if err != nil {
		return nil, err
	}
	described, err := json.Marshal(definition)
	if err != nil {
		return nil, err
	}
	platform, err := a.platform(spec.Mode)
	if err != nil {
		return nil, err
	}
	platformJSON, err := json.Marshal(platform)
	if err != nil {
		return nil, err
	}
	memory, err := a.memoryOf(ctx, definition.ID)
	if err != nil {
		return nil, err
	}
	trees, err := a.treesSize(ctx, definition, volumes)
	if err != nil {
		return nil, err
	}
	volumesJSON, err := json.Marshal(volumes)
	if err != nil {
		return nil, err
	}
	return &api.Offer{
		Protocol: uint32(protocol), Migration: spec.ID, Mode: string(spec.Mode), DefinitionJson: described,
		PlatformJson: platformJSON, MemoryBytes: memory, TreesBytes: trees,
		StartedUnixNanoseconds: spec.Started.UnixNano(),
		VolumesJson:            volumesJSON,
		Layers:                 a.layers.Here(definition.Layers),
	}, nil
}

// platform is what this node is, as far as it matters to processes that move here or away in a mode.
func (a *Agent) platform(mode migration.Mode) (migration.Platform, error) {
	machine, err := kernel.ReadMachine()
	if err != nil {
		return migration.Platform{}, err
	}
	platform := migration.Platform{
		Architecture: machine.Architecture, CPUModel: machine.CPUModel, CPUFeatures: machine.CPUFeatures,
		Kernel: machine.KernelRelease, PageBytes: machine.PageSizeBytes,
	}
	if platform.Cgroups, err = kernel.CgroupHierarchies(); err != nil {
		return platform, err
	}
	tool, err := criu.Find()
	if mode == migration.Restart {
		err = nil // nobody needs it
	}
	if err != nil {
		return platform, err
	}
	platform.CRIU = tool.Version.String()
	return platform, nil
}

// treesSize is how much there is in the directories that move. Each volume's part is noted.
func (a *Agent) treesSize(ctx context.Context, definition engine.Definition,
	volumes []migration.VolumeMoved) (int64, error) {
	trees, err := a.treesOf(ctx, definition)
	if err != nil {
		return 0, err
	}
	defer files.LetGo(trees)
	var total int64
	for _, tree := range trees {
		size, err := treeSize(ctx, tree)
		if err != nil {
			return 0, err
		}
		total += size.Bytes
		for i, v := range definition.Volumes {
			if isTreeOf(tree, v) && i < len(volumes) {
				volumes[i].Bytes, volumes[i].Files = size.Bytes, size.Entries
			}
		}
	}
	return total, nil
}

func treeSize(ctx context.Context, tree files.Tree) (files.Size, error) {
	size, err := files.TreeSize(ctx, tree)
	if err != nil {
		return size, fmt.Errorf("size of %s: %w", tree.Path, err)
	}
	return size, nil
}

// examineOffer lists what stands against a container coming here from a node. It changes nothing.
func (a *Agent) examineOffer(ctx context.Context, from string, definition engine.Definition,
	offer *api.Offer) ([]migration.Problem, error) {
	if refused := a.arrivalProblems(from, definition, offer); len(refused) > 0 {
		return refused, nil
	}
	// its engine would not answer, either
	if waiting := a.moves.examineWaiting(definition); len(waiting) > 0 {
		return waiting, nil
	}
	var theirs migration.Platform
	if err := json.Unmarshal(offer.PlatformJson, &theirs); err != nil {
		return nil, fmt.Errorf("%w: platform of the source: %w", errInvalid, err)
	}
	mode := migration.Mode(offer.Mode)
	ours, err := a.platform(mode)
	if err != nil {
		return nil, err
	}
	one, err := a.engines.Lookup(definition)
	if errors.Is(err, engine.ErrNoEngine) {
		return []migration.Problem{{
			What: "engine " + definition.EngineName, Why: a.self.Name + " does not know it",
			Remedy: "use the same version of godwit on both nodes",
		}}, nil
	}
	if err != nil {
		return nil, err
	}
	reserve, problems := one.ReserveAnew, migration.CompareAnew(theirs, ours)
	if mode != migration.Restart {
		reserve = one.Reserve
		problems, _ = migration.Compare(theirs, ours)
	}
	elsewhere, err := a.engines.Elsewhere(ctx, definition)
	if err != nil {
		return nil, err
	}
	if elsewhere != nil {
		return []migration.Problem{{
			What:   fmt.Sprintf("container %.12s", definition.ID),
			Why:    "engine " + elsewhere.Name() + " of " + a.self.Name + " has a container of this ID",
			Remedy: "remove that container",
		}}, nil
	}
	found, err := reserve(ctx, definition)
	if err != nil {
		return nil, err
	}
	for _, p := range found {
		problems = append(problems, migration.Problem{What: p.What, Why: p.Why, Remedy: p.Remedy})
	}
	address, err := a.examineAddress(ctx, definition)
	if err != nil {
		return nil, err
	}
	problems = append(problems, address...)
	room, err := a.examineRoom(from, definition, offer)
	return slices.Concat(problems, a.examineArriving(definition), room), err
}

func (a *Agent) examineAddress(ctx context.Context, definition engine.Definition) ([]migration.Problem,
	error) {
	address := definition.Network.Address
	if !definition.Network.Pooled() {
		return a.examineForwarded(definition), nil // the engine knows whether else it can have it
	}
	what := "address " + address.String()
	if _, err := a.network.Home(address); err != nil {
		return []migration.Problem{{What: what, Why: err.Error(), Remedy: "use nodes of one cluster"}}, nil
	}
	other, err := a.holder(ctx, address)
	if err != nil {
		return nil, err
	}
	if other.ID != "" {
		return []migration.Problem{{
			What: what, Why: "container " + other.Name + " has it on " + a.self.Name,
			Remedy: "remove that container",
		}}, nil
	}
	if a.leases.AtHome(address) && a.leases.Of(address) != definition.ID {
		return []migration.Problem{{
			What: what, Why: a.self.Name + ", which assigns this address, did not assign it to this " +
				"container",
			Remedy: "create the container again",
		}}, nil
	}
	return nil, nil
}

// examineForwarded refuses an address that this node forwards to another container, which was here before.
func (a *Agent) examineForwarded(definition engine.Definition) []migration.Problem {
	address := definition.Network.Address
	if !definition.Network.OnBridge() {
		return nil
	}
	for _, place := range a.network.BridgedPlaces() {
		if place.Address == address && place.Container != definition.ID && !place.Here && place.Via != "" {
			return []migration.Problem{{
				What: "address " + address.String(),
				Why: fmt.Sprintf("%s forwards packets for it to container %.12s on %s, which was here "+
					"before", a.self.Name, place.Container, place.Via),
				Remedy: "remove that container, or give this one another address",
			}}
		}
	}
	return nil
}

// holder is the container on this node that has an address; a definition without an id if there is none.
func (a *Agent) holder(ctx context.Context, address netip.Addr) (engine.Definition, error) {
	if !address.IsValid() {
		return engine.Definition{}, nil
	}
	containers, err := a.lists.Addressed(ctx)
	if err != nil {
		return engine.Definition{}, err
	}
	for _, have := range containers {
		if have.Definition.Network.Address == address {
			return have.Definition, nil
		}
	}
	return engine.Definition{}, nil
}

// missing lists what of an image is not here. Where something stands against the container its
// engine may not be there to tell.
func (a *Agent) missing(ctx context.Context, definition engine.Definition,
	problems []migration.Problem) (*api.Reservation, error) {
	images, err := a.imagesOf(definition)
	if len(problems) > 0 && (err != nil || images != nil) {
		return &api.Reservation{}, nil
	}
	if err != nil {
		return nil, err
	}
	lack := engine.Lack{Image: len(definition.Layers) > 0 && !a.images.Has(definition.ImageID),
		Layers: definition.Layers}
	here := a.images.HasLayer
	if images != nil {
		here = a.layers.OnNode
		if lack, err = images.Lacks(ctx, imageOf(definition)); err != nil {
			return nil, err
		}
	}
	return &api.Reservation{MissingImage: lack.Image,
		MissingLayers: slices.DeleteFunc(slices.Clone(lack.Layers), here)}, nil
}

// answerDryRun answers an offer that is only a question.
func (a *Agent) answerDryRun(stream grpc.BidiStreamingServer[api.Envelope, api.Envelope], from string,
	offer *api.Offer) error {
	if err := envelopes.CheckProtocol(from, offer); err != nil {
		return err
	}
	definition, err := envelopes.Definition(offer)
	if err != nil {
		return err
	}
	if err := envelopes.CheckSizes(offer); err != nil {
		return err
	}
	problems, err := a.examineOffer(stream.Context(), from, definition, offer)
	if err != nil {
		return err
	}
	message, err := envelopes.Encode(migration.Message{Kind: migration.KindReserved, Problems: problems})
	if err != nil {
		return err
	}
	missing, err := a.missing(stream.Context(), definition, problems)
	if err != nil {
		return err
	}
	missing.KeepsSpillKey = true
	return stream.Send(&api.Envelope{Message: message, Reservation: missing})
}

// examineFor lists what stands against a container leaving in a mode.
func (a *Agent) examineFor(ctx context.Context, spec migration.Spec,
	definition engine.Definition) ([]engine.Problem, error) {
	if spec.Mode == migration.Restart {
		return a.engines.EngineFor(definition).ExamineAnew(ctx, definition.ID)
	}
	found, err := a.engines.EngineFor(definition).Examine(ctx, definition.ID)
	return a.restartRemedy(ctx, definition, found), err
}

// plan reports whether a migration would work, what would move, and what it would cost in each mode.
// Nothing is changed.
func (a *Agent) plan(ctx context.Context, request *api.MigrateRequest) (predict.Plan, error) {
	spec, definition, node, err := a.specify(ctx, request)
	if err != nil {
		return predict.Plan{}, err
	}
	settings := settingsFor(request, spec.Mode)
	demands, err := demandsOf(request, settings, a.config.PostCopy, a.refusedModes(node.Name))
	if err != nil {
		return predict.Plan{}, err
	}
	found, err := a.examineFor(ctx, spec, definition)
	if err != nil {
		return predict.Plan{}, err
	}
	chosen, err := a.chooseVolumes(ctx, spec.Mode, definition, node, demands.Settings.Volumes)
	if err != nil {
		return predict.Plan{}, err
	}
	definition.Volumes = chosen.volumes
	asked := spec
	if spec.Mode == migration.Auto {
		asked.Mode = asAuto(demands.Refused)
	}
	offer, err := a.makeOffer(ctx, asked, definition, chosen.moved)
	if err != nil {
		return predict.Plan{}, err
	}
	spilled := spillBytes(spec.Mode, demands.Settings, offer.MemoryBytes)
	if spec.Mode != migration.Restart {
		remembered, err := a.examineInodes(ctx, definition, chosen, settings)
		if err != nil {
			return predict.Plan{}, err
		}
		found = append(found, remembered...)
		found = append(found, a.examineOwnRoom(offer)...)
		found = append(found, a.examineSpill(spilled)...)
	}
	plan := predict.Plan{Plan: migration.Plan{
		Container: definition.Name, Source: a.self.Name, Target: node.Name, Mode: spec.Mode,
		Problems: []migration.Problem{},
		Warnings: []string{}, MissingLayers: []string{}, MemoryBytes: offer.MemoryBytes,
		FilesBytes: offer.TreesBytes,
		Volumes:    chosen.moved, SpillBytes: spilled,
	}, Predictions: []predict.Prediction{}, Better: []string{}}
	for _, p := range append(found, chosen.problems...) {
		plan.Problems = append(plan.Problems, migration.Problem{What: p.What, Why: p.Why, Remedy: p.Remedy})
	}
	if err := a.askTarget(ctx, node, offer, &plan.Plan); err != nil {
		return predict.Plan{}, fmt.Errorf("node %s: %s", node.Name, plain(err))
	}
	plan.Warnings = append(plan.Warnings, a.leavesBehind(definition)...)
	if demands.Split.Bounded() && spec.Mode != migration.Auto && len(plan.Problems) == 0 {
		if err := a.planSplit(ctx, &plan.Plan, definition, node, demands); err != nil {
			return predict.Plan{}, err
		}
	}
	plan.Possible = len(plan.Problems) == 0
	if !request.Forecast {
		return plan, nil
	}
	err = a.forecast(ctx, &plan, definition, node, demands, seconds(request.WatchSeconds),
		layerBytes(offer.Layers, plan.MissingLayers))
	return plan, err
}

// leavesBehind says what of a container stays at the source although users may look for it at the target.
func (a *Agent) leavesBehind(definition engine.Definition) []string {
	if leaver := a.engines.EngineFor(definition).Capabilities().Leaver; leaver != nil {
		return leaver.LeavesBehind(definition)
	}
	return nil
}

// layerBytes is how much there is of the layers that are missing.
func layerBytes(layers []*api.Layer, missing []string) (bytes int64) {
	for _, layer := range layers {
		if slices.Contains(missing, layer.DiffId) {
			bytes += layer.StoredBytes
		}
	}
	return bytes
}

// askTarget adds what the target says.
func (a *Agent) askTarget(ctx context.Context, node identity.Node, offer *api.Offer,
	plan *migration.Plan) error {
	client, err := a.peers.Client(node)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	stream, err := openSession(ctx, cancel, client)
	if err != nil {
		return err
	}
	offer.DryRun = true
	first := &api.Envelope{Offer: offer, Message: &api.Message{Kind: string(migration.KindReserve)}}
	if err := stream.Send(first); err != nil {
		return err
	}
	envelope, err := stream.Recv()
	if err != nil {
		return err
	}
	if envelope.Message == nil || envelope.Reservation == nil {
		return errors.New("it sent an answer of another kind")
	}
	message, err := envelopes.Decode(envelope.Message)
	if err != nil {
		return err
	}
	plan.Problems = append(plan.Problems, message.Problems...)
	if problem := keepsNoSpillKey(node.Name, plan.SpillBytes, envelope.Reservation); problem != nil {
		plan.Problems = append(plan.Problems, *problem)
	}
	plan.MissingLayers = append(plan.MissingLayers, envelope.Reservation.MissingLayers...)
	if envelope.Reservation.WarningsJson != nil {
		return envelopes.DecodeList(envelope.Reservation.WarningsJson, &plan.Warnings)
	}
	return nil
}
