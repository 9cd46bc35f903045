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

// Image is what a container is made from. It travels between nodes: whoever gets it checks it.
type Image struct {
	ID        string   // digest of its configuration
	Names     []string // short, as users write them
	Config    []byte   // as it came
	Layers    []string // DiffIDs, lowest first
	Namespace string   // of the engine, in which it is to be, if it has several
	// Manifests lead from what the engine calls the image, topmost first, to its configuration and
	// to its Blobs: what is kept as its layers, lowest first. Of engines that call an image by its
	// configuration there are none.
	Manifests [][]byte
	Blobs     []string
}

// Lack is what an engine has not of an image.
type Lack struct {
	Image bool // it could not make a container from it
	// that it has not at their places, lowest first: DiffIDs, or what is kept as layers
	// (Image.Blobs)
	Layers []string
}

// ImageKeeper is an engine that may keep images itself. Those of any other are in the agent's store.
type ImageKeeper interface {
	// Images is how; nil: it does not.
	Images() Images
}

// Images is what an engine does that keeps images itself, which has to have them before it makes a
// container. A layer is the same everywhere: its DiffID is the digest of its archive, whatever the
// engine calls it.
type Images interface {
	// Image finds an image by its ID, or by what the engine calls it. Error: ErrNoImage.
	Image(ctx context.Context, id string) (Image, error)
	// AllImages tells of all, without their configurations.
	AllImages(ctx context.Context) ([]Image, error)
	// LayerBytes is how large the archive of a layer is that is here, or what is kept as one, by
	// its digest. Error: ErrNoLayer.
	LayerBytes(diffID string) (int64, error)
	// OpenLayer opens the archive of a layer, not compressed, or what is kept as one, as it is:
	// exactly that of which the DiffID is the digest, or reading fails.
	OpenLayer(diffID string) (io.ReadCloser, error)
	// Lacks tells what is missing of an image; its configuration need not be known.
	Lacks(ctx context.Context, image Image) (Lack, error)
	// Take makes an image, without a name: names are the operator's. It opens the layers that it
	// lacks. When it fails nothing of the image is here that was not. It is not on the disk before
	// Sync.
	Take(ctx context.Context, image Image,
		open func(diffID string) (archive io.ReadCloser, bytes int64, err error)) error
	// Sync brings all that the engine keeps to the disk, also what others have written into its containers.
	Sync(ctx context.Context) error
}
