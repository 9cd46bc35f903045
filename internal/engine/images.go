package engine

import (
	"context"
	"errors"
	"io"
)

// Errors of engines that keep images themselves.
var (
	ErrNoImage = errors.New("no such image")
	ErrNoLayer = errors.New("no such layer")
)

// Image is an image of a container. It travels between nodes: the receiver checks it.
type Image struct {
	ID        string   // digest of its configuration
	Names     []string // short, as users write them
	Config    []byte   // as it came
	Layers    []string // DiffIDs, lowest first
	Namespace string   // of the engine, to put it into, if it has several
	// Manifests lead from the engine's name for the image, topmost first, to its configuration and to its
	// Blobs: its layers as stored, lowest first. There are none if the engine identifies an image by its
	// configuration.
	Manifests [][]byte
	Blobs     []string
}

// Lack describes what an engine lacks of an image.
type Lack struct {
	Image bool // it could not make a container from the image
	// missing layers, lowest first: DiffIDs, or layers as stored (Image.Blobs)
	Layers []string
}

// Images is the part of an engine that keeps images itself, and needs them before it makes a container. A
// layer is the same everywhere: its DiffID is the digest of its archive, whatever the engine calls it.
type Images interface {
	// Image finds an image by its ID, or by the engine's name for it. Error: ErrNoImage.
	Image(ctx context.Context, id string) (Image, error)
	// AllImages returns all images, without their configurations.
	AllImages(ctx context.Context) ([]Image, error)
	// LayerBytes returns the size of a layer's archive that is here, or of the layer as stored, by its
	// digest. Error: ErrNoLayer.
	LayerBytes(diffID string) (int64, error)
	// OpenLayer opens the uncompressed archive of a layer, or the layer as stored: reading fails unless the
	// content has exactly this digest.
	OpenLayer(diffID string) (io.ReadCloser, error)
	// Lacks returns what is missing of an image; its configuration need not be known.
	Lacks(ctx context.Context, image Image) (Lack, error)
	// Take makes an image, without a name: names are the operator's choice. It opens the layers that it
	// lacks. If Take fails, it leaves nothing of the image that was not here before. The image is not on
	// disk before Sync.
	Take(ctx context.Context, image Image,
		open func(diffID string) (archive io.ReadCloser, bytes int64, err error)) error
	// Sync flushes everything that the engine keeps to disk, including other programs' writes into its
	// containers.
	Sync(ctx context.Context) error
}
