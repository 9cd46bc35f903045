package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/shared"
	"github.com/godwit/godwit/internal/transfer/proof"
	"github.com/godwit/godwit/internal/transfer/volumes"
)

// inspectedVolume is what `godwit volume inspect` shows.
type inspectedVolume struct {
	engine.StoredVolume
	Bytes int64 `json:"bytes"` // of regular files, without holes
	Files int64 `json:"files"` // of all types
}

func (s *localService) Volumes(ctx context.Context, _ *api.VolumesRequest) (*api.VolumesReply, error) {
	all, err := s.agent.embedded.Volumes(ctx)
	if err != nil {
		return nil, wireError(err)
	}
	documents, err := marshalEach(all)
	return &api.VolumesReply{VolumesJson: documents}, wireError(err)
}

func (s *localService) InspectVolume(ctx context.Context,
	request *api.VolumeRequest) (*api.InspectVolumeReply, error) {
	volume, err := s.agent.findVolume(ctx, request.Name)
	if err != nil {
		return nil, wireError(err)
	}
	size, err := files.TreeSize(ctx, files.Tree{Kind: files.VolumeOf, Name: volume.Name, Path: volume.Path})
	if err != nil {
		return nil, wireError(err)
	}
	document, err := json.Marshal(inspectedVolume{StoredVolume: volume, Bytes: size.Bytes,
		Files: size.Entries})
	if err != nil {
		return nil, wireError(err)
	}
	return &api.InspectVolumeReply{VolumeJson: document}, nil
}

func (s *localService) RemoveVolume(ctx context.Context, request *api.VolumeRequest) (*api.RemoveVolumeReply,
	error) {
	return &api.RemoveVolumeReply{}, wireError(s.agent.embedded.RemoveVolume(ctx, request.Name))
}

// findVolume finds a volume of this node by its name.
func (a *Agent) findVolume(ctx context.Context, name string) (engine.StoredVolume, error) {
	all, err := a.embedded.Volumes(ctx)
	if err != nil {
		return engine.StoredVolume{}, err
	}
	for _, one := range all {
		if one.Name == name {
			return one, nil
		}
	}
	return engine.StoredVolume{}, fmt.Errorf("%w: %.80q; \"godwit volume ls\" lists them", engine.ErrNoVolume,
		name)
}

// Prove looks for tokens of another node in volumes of this one, and answers them.
func (s *peerService) Prove(ctx context.Context, request *api.ProveRequest) (*api.ProveReply, error) {
	if _, err := caller(ctx); err != nil {
		return nil, err
	}
	if len(request.Proofs) > envelopes.MaxParts {
		return nil, wireError(fmt.Errorf("%w: %d volumes, at most %d", errInvalid, len(request.Proofs),
			envelopes.MaxParts))
	}
	reply := &api.ProveReply{}
	for _, one := range request.Proofs {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		found := &api.Proven{}
		answer, err := s.agent.proofs.Answer(one)
		switch {
		case err == nil:
			found.Token, found.Reply, found.Locked = answer.Token, answer.Reply, answer.Locked
			found.Device, found.Inode = answer.Device, answer.Inode
		case !errors.Is(err, shared.ErrNotShared):
			found.Error = err.Error()
		}
		reply.Proven = append(reply.Proven, found)
	}
	return reply, nil
}

// newProver finds out for this agent which volumes other nodes share.
func (a *Agent) newProver() *proof.Prover {
	return proof.New(filepath.Join(a.config.StateDir, "proofs"), a.engines, a.peers, a.log)
}

// newVolumes decides what becomes of volumes of containers of this agent.
func (a *Agent) newVolumes() *volumes.Mover {
	return volumes.New(a.volumesMachine(), a.engines, a.proofs, a.log)
}

// volumesMachine is what volumes must not touch.
func (a *Agent) volumesMachine() volumes.Machine {
	return volumes.Machine{Name: a.self.Name, StateDir: a.config.StateDir, RunDir: a.config.RunDir}
}
