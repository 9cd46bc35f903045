package agent

import (
	"context"
	"encoding/json"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
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

func (s *localService) InspectVolume(ctx context.Context, request *api.VolumeRequest) (*api.InspectVolumeReply, error) {
	volume, err := s.agent.findVolume(ctx, request.Name)
	if err != nil {
		return nil, wireError(err)
	}
	size, err := files.TreeSize(ctx, files.Tree{Kind: files.VolumeOf, Name: volume.Name, Path: volume.Path})
	if err != nil {
		return nil, wireError(err)
	}
	document, err := json.Marshal(inspectedVolume{StoredVolume: volume, Bytes: size.Bytes, Files: size.Entries})
	if err != nil {
		return nil, wireError(err)
	}
	return &api.InspectVolumeReply{VolumeJson: document}, nil
}

func (s *localService) RemoveVolume(ctx context.Context, request *api.VolumeRequest) (*api.RemoveVolumeReply, error) {
	return &api.RemoveVolumeReply{}, wireError(s.agent.embedded.RemoveVolume(ctx, request.Name))
}
