package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/admission"
	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/forecast"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/transfer/anew"
	"github.com/godwit/godwit/internal/transfer/memory/push"
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
	platform, err := admission.ReadPlatform(spec.Mode)
	if err != nil {
		return nil, err
	}
	platformJSON, err := json.Marshal(platform)
	if err != nil {
		return nil, err
	}
	memory, err := a.admission.MemoryOf(ctx, definition.ID)
	if err != nil {
		return nil, err
	}
	trees, err := a.volumes.TreesSize(ctx, definition, volumes)
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
	problems, err := a.admission.Examine(stream.Context(), from, definition, offer)
	if err != nil {
		return err
	}
	message, err := envelopes.Encode(migration.Message{Kind: migration.KindReserved, Problems: problems})
	if err != nil {
		return err
	}
	missing, err := a.admission.Missing(stream.Context(), definition, problems)
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
	return anew.Remedy(ctx, a.engines, definition, found), err
}

// plan reports whether a migration would work, what would move, and what it would cost in each mode.
// Nothing is changed.
func (a *Agent) plan(ctx context.Context, request *api.MigrateRequest) (predict.Plan, error) {
	spec, definition, node, err := a.specify(ctx, request)
	if err != nil {
		return predict.Plan{}, err
	}
	settings := settingsFor(request, spec.Mode)
	demands, err := forecast.DemandsOf(request, settings, a.config.PostCopy, a.refusedModes(node.Name))
	if err != nil {
		return predict.Plan{}, err
	}
	found, err := a.examineFor(ctx, spec, definition)
	if err != nil {
		return predict.Plan{}, err
	}
	chosen, err := a.volumes.Choose(ctx, spec.Mode, definition, node, demands.Settings.Volumes)
	if err != nil {
		return predict.Plan{}, err
	}
	definition.Volumes = chosen.Volumes
	asked := spec
	if spec.Mode == migration.Auto {
		asked.Mode = admission.AsAuto(demands.Refused)
	}
	offer, err := a.makeOffer(ctx, asked, definition, chosen.Moved)
	if err != nil {
		return predict.Plan{}, err
	}
	spilled := push.SpillBytes(spec.Mode, demands.Settings, offer.MemoryBytes)
	if spec.Mode != migration.Restart {
		remembered, err := a.examineInodes(ctx, definition, chosen, settings)
		if err != nil {
			return predict.Plan{}, err
		}
		found = append(found, remembered...)
		found = append(found, a.admission.ExamineOwnRoom(offer)...)
		found = append(found, push.ExamineRoom(a.self.Name, a.config.StateDir, spilled)...)
	}
	plan := predict.Plan{Plan: migration.Plan{
		Container: definition.Name, Source: a.self.Name, Target: node.Name, Mode: spec.Mode,
		Problems: []migration.Problem{},
		Warnings: []string{}, MissingLayers: []string{}, MemoryBytes: offer.MemoryBytes,
		FilesBytes: offer.TreesBytes,
		Volumes:    chosen.Moved, SpillBytes: spilled,
	}, Predictions: []predict.Prediction{}, Better: []string{}}
	for _, p := range append(found, chosen.Problems...) {
		plan.Problems = append(plan.Problems, migration.Problem{What: p.What, Why: p.Why, Remedy: p.Remedy})
	}
	if err := a.askTarget(ctx, node, offer, &plan.Plan); err != nil {
		return predict.Plan{}, fmt.Errorf("node %s: %s", node.Name, plain(err))
	}
	plan.Warnings = append(plan.Warnings, a.leavesBehind(definition)...)
	if demands.Split.Bounded() && spec.Mode != migration.Auto && len(plan.Problems) == 0 {
		if err := a.forecaster().PlanSplit(ctx, &plan.Plan, definition, node, demands); err != nil {
			return predict.Plan{}, err
		}
	}
	plan.Possible = len(plan.Problems) == 0
	if !request.Forecast {
		return plan, nil
	}
	err = a.forecaster().Fill(ctx, &plan, definition, node, demands, seconds(request.WatchSeconds),
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
	if problem := push.KeepsNoKey(node.Name, plan.SpillBytes,
		envelope.Reservation.GetKeepsSpillKey()); problem != nil {
		plan.Problems = append(plan.Problems, *problem)
	}
	plan.MissingLayers = append(plan.MissingLayers, envelope.Reservation.MissingLayers...)
	if envelope.Reservation.WarningsJson != nil {
		return envelopes.DecodeList(envelope.Reservation.WarningsJson, &plan.Warnings)
	}
	return nil
}
