package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/shared"
)

// VolumeService answers for the volumes of the node's own engine.
type VolumeService struct{ Store Volumes }

// Volumes are stored on the node.
type Volumes interface {
	Volumes(ctx context.Context) ([]engine.StoredVolume, error)
	RemoveVolume(ctx context.Context, name string) error
}

// inspectedVolume is what `godwit volume inspect` shows.
type inspectedVolume struct {
	engine.StoredVolume
	Bytes int64 `json:"bytes"` // of regular files, without holes
	Files int64 `json:"files"` // of all types
}

// Volumes lists the volumes that have a name.
func (s *VolumeService) Volumes(ctx context.Context, _ *api.VolumesRequest) (*api.VolumesReply, error) {
	all, err := s.Store.Volumes(ctx)
	if err != nil {
		return nil, Error(err)
	}
	documents, err := MarshalEach(all)
	return &api.VolumesReply{VolumesJson: documents}, Error(err)
}

// InspectVolume describes a volume.
func (s *VolumeService) InspectVolume(ctx context.Context,
	request *api.VolumeRequest) (*api.InspectVolumeReply, error) {
	volume, err := s.find(ctx, request.Name)
	if err != nil {
		return nil, Error(err)
	}
	size, err := files.TreeSize(ctx, files.Tree{Kind: files.VolumeOf, Name: volume.Name, Path: volume.Path})
	if err != nil {
		return nil, Error(err)
	}
	document, err := json.Marshal(inspectedVolume{StoredVolume: volume, Bytes: size.Bytes,
		Files: size.Entries})
	if err != nil {
		return nil, Error(err)
	}
	return &api.InspectVolumeReply{VolumeJson: document}, nil
}

// RemoveVolume removes a volume that no container uses.
func (s *VolumeService) RemoveVolume(ctx context.Context, request *api.VolumeRequest) (*api.RemoveVolumeReply,
	error) {
	return &api.RemoveVolumeReply{}, Error(s.Store.RemoveVolume(ctx, request.Name))
}

// find finds a volume of this node by its name.
func (s *VolumeService) find(ctx context.Context, name string) (engine.StoredVolume, error) {
	all, err := s.Store.Volumes(ctx)
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

// ProofService answers other nodes that ask whether they share volumes with this one.
type ProofService struct{ Proofs Proofs }

// Proofs answer for single volumes. See proof.Prover.
type Proofs interface {
	Answer(one *api.Proof) (shared.Answer, error)
}

// Prove looks for tokens of another node in volumes of this one, and answers them.
func (s *ProofService) Prove(ctx context.Context, request *api.ProveRequest) (*api.ProveReply, error) {
	if _, err := Caller(ctx); err != nil {
		return nil, err
	}
	if len(request.Proofs) > envelopes.MaxParts {
		return nil, Error(fmt.Errorf("%w: %d volumes, at most %d", api.ErrInvalid, len(request.Proofs),
			envelopes.MaxParts))
	}
	reply := &api.ProveReply{}
	for _, one := range request.Proofs {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		found := &api.Proven{}
		answer, err := s.Proofs.Answer(one)
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
