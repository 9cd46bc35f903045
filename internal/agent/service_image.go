package agent

import (
	"context"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files/image"
)

// LoadImage takes an archive.
func (s *localService) LoadImage(stream grpc.BidiStreamingServer[api.Chunk, api.ImageProgress]) error {
	loaded, err := s.agent.images.LoadStream(stream.Context(), &chunkReader{stream: stream},
		imageProgress(stream))
	if err != nil {
		return wireError(err)
	}
	for _, one := range loaded {
		if err := stream.Send(&api.ImageProgress{Image: describeImage(one)}); err != nil {
			return err
		}
	}
	return nil
}

// chunkReader reads what a caller sends.
type chunkReader struct {
	stream grpc.BidiStreamingServer[api.Chunk, api.ImageProgress]
	rest   []byte
}

func (r *chunkReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		chunk, err := r.stream.Recv()
		if err != nil {
			return 0, err
		}
		r.rest = chunk.Data
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

type progressSender interface {
	Send(*api.ImageProgress) error
}

// imageProgress passes lines on. A caller that has gone away does not end the work: its context does.
func imageProgress(stream progressSender) func(string) {
	return func(line string) { _ = stream.Send(&api.ImageProgress{Text: line}) }
}

// PullImage brings an image from a registry.
func (s *localService) PullImage(request *api.PullImageRequest,
	stream grpc.ServerStreamingServer[api.ImageProgress]) error {
	options := image.PullOptions{PlainHTTP: request.PlainHttp}
	pulled, err := s.agent.images.Pull(stream.Context(), request.Reference, options, imageProgress(stream))
	if err != nil {
		return wireError(err)
	}
	return stream.Send(&api.ImageProgress{Image: describeImage(pulled)})
}

func (s *localService) ListImages(context.Context, *api.ListImagesRequest) (*api.ListImagesReply, error) {
	images, err := s.agent.images.List()
	if err != nil {
		return nil, wireError(err)
	}
	reply := &api.ListImagesReply{}
	for _, one := range images {
		reply.Images = append(reply.Images, describeImage(one))
	}
	return reply, nil
}

func describeImage(one image.Image) *api.Image {
	return &api.Image{
		Id: one.ID, Names: one.Names, SizeBytes: one.Size, CreatedUnixSeconds: one.Created.Unix(),
		Architecture: one.Architecture, Layers: int32(len(one.Layers)),
	}
}

// RemoveImage removes a name, and the image with the last one, unless a container uses it.
func (s *localService) RemoveImage(ctx context.Context,
	request *api.RemoveImageRequest) (*api.RemoveImageReply, error) {
	containers, err := s.agent.embedded.List(ctx) // other engines have images of their own
	if err != nil {
		return nil, wireError(err)
	}
	used, unknown := map[string]bool{}, false
	for _, container := range containers {
		unknown = unknown || container.State == engine.Damaged
		used[container.Definition.ImageID] = true
	}
	err = s.agent.images.Remove(ctx, request.Reference, func(id string) bool { return used[id] || unknown })
	return &api.RemoveImageReply{}, wireError(err)
}
