package departure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/godwit/godwit/internal/admission"
	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/control"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/forecast"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/transfer/anew"
	"github.com/godwit/godwit/internal/wire/identity"
)

// Offer describes a container that is to be moved, so that the target can tell whether it can take it.
func (d *Departures) Offer(ctx context.Context, spec migration.Spec, definition engine.Definition,
	volumes []migration.VolumeMoved) (*api.Offer, error) {
	protocol, err := d.Peers.Protocol(spec.Target)
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
	memory, err := d.Admission.MemoryOf(ctx, definition.ID)
	if err != nil {
		return nil, err
	}
	trees, err := d.Volumes.TreesSize(ctx, definition, volumes)
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
		Layers:                 d.Layers(definition.Layers),
	}, nil
}

// examineFor lists what stands against a container leaving in a mode.
func (d *Departures) examineFor(ctx context.Context, spec migration.Spec,
	definition engine.Definition) ([]engine.Problem, error) {
	if spec.Mode == migration.Restart {
		return d.Engines.EngineFor(definition).ExamineAnew(ctx, definition.ID)
	}
	found, err := d.Engines.EngineFor(definition).Examine(ctx, definition.ID)
	return anew.Remedy(ctx, d.Engines, definition, found), err
}

// Plan reports whether a migration would work, what would move, and what it would cost in each mode.
// Nothing is changed.
func (d *Departures) Plan(ctx context.Context, request *api.MigrateRequest) (predict.Plan, error) {
	spec, definition, node, err := d.Specify(ctx, request)
	if err != nil {
		return predict.Plan{}, err
	}
	settings := SettingsFor(request, spec.Mode)
	demands, err := forecast.DemandsOf(request, settings, d.PostCopy, d.RefusedModes(node.Name))
	if err != nil {
		return predict.Plan{}, err
	}
	found, err := d.examineFor(ctx, spec, definition)
	if err != nil {
		return predict.Plan{}, err
	}
	chosen, err := d.Volumes.Choose(ctx, spec.Mode, definition, node, demands.Settings.Volumes)
	if err != nil {
		return predict.Plan{}, err
	}
	definition.Volumes = chosen.Volumes
	asked := spec
	if spec.Mode == migration.Auto {
		asked.Mode = admission.AsAuto(demands.Refused)
	}
	offer, err := d.Offer(ctx, asked, definition, chosen.Moved)
	if err != nil {
		return predict.Plan{}, err
	}
	spilled := d.Spill.Bytes(spec.Mode, demands.Settings, offer.MemoryBytes)
	if spec.Mode != migration.Restart {
		remembered, err := d.ExamineInodes(ctx, definition, chosen, settings)
		if err != nil {
			return predict.Plan{}, err
		}
		found = append(found, remembered...)
		found = append(found, d.Admission.ExamineOwnRoom(offer)...)
		found = append(found, d.Spill.Examine(spilled)...)
	}
	plan := predict.Plan{Plan: migration.Plan{
		Container: definition.Name, Source: d.Node, Target: node.Name, Mode: spec.Mode,
		Problems: []migration.Problem{},
		Warnings: []string{}, MissingLayers: []string{}, MemoryBytes: offer.MemoryBytes,
		FilesBytes: offer.TreesBytes,
		Volumes:    chosen.Moved, SpillBytes: spilled,
	}, Predictions: []predict.Prediction{}, Better: []string{}}
	for _, p := range append(found, chosen.Problems...) {
		plan.Problems = append(plan.Problems, migration.Problem{What: p.What, Why: p.Why, Remedy: p.Remedy})
	}
	if err := d.askTarget(ctx, node, offer, &plan.Plan); err != nil {
		return predict.Plan{}, fmt.Errorf("node %s: %s", node.Name, api.Plain(err))
	}
	plan.Warnings = append(plan.Warnings, d.LeavesBehind(definition)...)
	if demands.Split.Bounded() && spec.Mode != migration.Auto && len(plan.Problems) == 0 {
		if err := d.Forecaster().PlanSplit(ctx, &plan.Plan, definition, node, demands); err != nil {
			return predict.Plan{}, err
		}
	}
	plan.Possible = len(plan.Problems) == 0
	if !request.Forecast {
		return plan, nil
	}
	err = d.Forecaster().Fill(ctx, &plan, definition, node, demands, seconds(request.WatchSeconds),
		layerBytes(offer.Layers, plan.MissingLayers))
	return plan, err
}

// LeavesBehind says what of a container stays at the source although users may look for it at the target.
func (d *Departures) LeavesBehind(definition engine.Definition) []string {
	if leaver := d.Engines.EngineFor(definition).Capabilities().Leaver; leaver != nil {
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
func (d *Departures) askTarget(ctx context.Context, node identity.Node, offer *api.Offer,
	plan *migration.Plan) error {
	client, err := d.Peers.Client(node)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	stream, err := control.Open(ctx, cancel, client)
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
	if problem := d.Spill.NoKey(node.Name, plan.SpillBytes, envelope.Reservation); problem != nil {
		plan.Problems = append(plan.Problems, *problem)
	}
	plan.MissingLayers = append(plan.MissingLayers, envelope.Reservation.MissingLayers...)
	if envelope.Reservation.WarningsJson != nil {
		return envelopes.DecodeList(envelope.Reservation.WarningsJson, &plan.Warnings)
	}
	return nil
}
