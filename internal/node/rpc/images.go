package rpc

import (
	"context"
	"io"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files/image"
)

// ImageService answers for the images of the node's own engine.
type ImageService struct {
	Store      Images
	Containers Containers // of the same engine
}

// Images are stored on the node. See image.Store.
type Images interface {
	LoadStream(ctx context.Context, archive io.Reader, progress image.Progress) ([]image.Image, error)
	Pull(ctx context.Context, ref string, options image.PullOptions,
		progress image.Progress) (image.Image, error)
	List() ([]image.Image, error)
	Remove(ctx context.Context, ref string, inUse func(imageID string) bool) error
}

// Containers of an engine.
type Containers interface {
	List(ctx context.Context) ([]engine.Container, error)
}

// LoadImage takes an archive.
func (s *ImageService) LoadImage(stream grpc.BidiStreamingServer[api.Chunk, api.ImageProgress]) error {
	loaded, err := s.Store.LoadStream(stream.Context(), &chunkReader{stream: stream},
		imageProgress(stream))
	if err != nil {
		return Error(err)
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
func (s *ImageService) PullImage(request *api.PullImageRequest,
	stream grpc.ServerStreamingServer[api.ImageProgress]) error {
	options := image.PullOptions{PlainHTTP: request.PlainHttp}
	pulled, err := s.Store.Pull(stream.Context(), request.Reference, options, imageProgress(stream))
	if err != nil {
		return Error(err)
	}
	return stream.Send(&api.ImageProgress{Image: describeImage(pulled)})
}

// ListImages lists the images of the agent's store.
func (s *ImageService) ListImages(context.Context, *api.ListImagesRequest) (*api.ListImagesReply, error) {
	images, err := s.Store.List()
	if err != nil {
		return nil, Error(err)
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
func (s *ImageService) RemoveImage(ctx context.Context,
	request *api.RemoveImageRequest) (*api.RemoveImageReply, error) {
	containers, err := s.Containers.List(ctx) // other engines have images of their own
	if err != nil {
		return nil, Error(err)
	}
	used, unknown := map[string]bool{}, false
	for _, container := range containers {
		unknown = unknown || container.State == engine.Damaged
		used[container.Definition.ImageID] = true
	}
	err = s.Store.Remove(ctx, request.Reference, func(id string) bool { return used[id] || unknown })
	return &api.RemoveImageReply{}, Error(err)
}
