package contentstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	content "github.com/containerd/containerd/api/services/content/v1"
	images "github.com/containerd/containerd/api/services/images/v1"
	namespaces "github.com/containerd/containerd/api/services/namespaces/v1"
	"github.com/containerd/containerd/api/types"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	mediatypes "github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/godwit/godwit/internal/engine"
	imagestore "github.com/godwit/godwit/internal/files/image"
)

// fake is a containerd with prepared content, which notes what it receives.
type fake struct {
	names   []string
	blobs   map[string][]byte // by digest, which need not match
	labels  map[string]string // DiffIDs of blobs, by digest
	targets map[string]*types.Descriptor
	shared  string // digest of content that another namespace has
	given   []byte
	fails   error  // of received content
	runs    string // name of the image of a container

	// digests of content whose reported size is wrong, and that is gone when it is read
	understated, removed string
}

type fakeImages struct {
	images.UnimplementedImagesServer
	*fake
}

func (f *fakeImages) List(context.Context, *images.ListImagesRequest) (*images.ListImagesResponse, error) {
	reply := &images.ListImagesResponse{}
	for name, target := range f.targets {
		reply.Images = append(reply.Images, &images.Image{Name: name, Target: target})
	}
	return reply, nil
}

func (f *fakeImages) Get(_ context.Context, r *images.GetImageRequest) (*images.GetImageResponse, error) {
	target, is := f.targets[r.Name]
	if !is {
		return nil, status.Error(codes.NotFound, r.Name)
	}
	return &images.GetImageResponse{Image: &images.Image{Name: r.Name, Target: target}}, nil
}

func (f *fakeImages) Create(_ context.Context, r *images.CreateImageRequest) (*images.CreateImageResponse,
	error) {
	if _, is := f.targets[r.Image.Name]; is {
		return nil, status.Error(codes.AlreadyExists, r.Image.Name)
	}
	f.targets[r.Image.Name] = r.Image.Target
	return &images.CreateImageResponse{Image: r.Image}, nil
}

func (f *fakeImages) Delete(_ context.Context, r *images.DeleteImageRequest) (*emptypb.Empty, error) {
	delete(f.targets, r.Name)
	return &emptypb.Empty{}, nil
}

type fakeContainers struct {
	containers.UnimplementedContainersServer
	*fake
}

func (f *fakeContainers) List(_ context.Context,
	r *containers.ListContainersRequest) (*containers.ListContainersResponse, error) {
	reply := &containers.ListContainersResponse{}
	if f.runs != "" && slices.Contains(r.Filters, `image=="`+f.runs+`"`) {
		reply.Containers = []*containers.Container{{ID: "web", Image: f.runs}}
	}
	return reply, nil
}

type fakeNamespaces struct {
	namespaces.UnimplementedNamespacesServer
	*fake
}

func (f *fakeNamespaces) List(context.Context,
	*namespaces.ListNamespacesRequest) (*namespaces.ListNamespacesResponse, error) {
	reply := &namespaces.ListNamespacesResponse{}
	for _, name := range f.names {
		reply.Namespaces = append(reply.Namespaces, &namespaces.Namespace{Name: name})
	}
	return reply, nil
}

type fakeContent struct {
	content.UnimplementedContentServer
	*fake
}

func (f *fakeContent) Info(ctx context.Context, r *content.InfoRequest) (*content.InfoResponse, error) {
	told, _ := metadata.FromIncomingContext(ctx)
	if len(told.Get("containerd-namespace")) != 1 {
		return nil, status.Error(codes.InvalidArgument, "namespace")
	}
	data, is := f.blobs[r.Digest]
	if !is {
		return nil, status.Error(codes.NotFound, r.Digest)
	}
	size := int64(len(data))
	if r.Digest == f.understated {
		size = 1
	}
	info := &content.Info{Digest: r.Digest, Size: size}
	if diffID, is := f.labels[r.Digest]; is {
		info.Labels = map[string]string{uncompressedLabel: diffID}
	}
	return &content.InfoResponse{Info: info}, nil
}

func (f *fakeContent) Update(_ context.Context, r *content.UpdateRequest) (*content.UpdateResponse, error) {
	if slices.Contains(r.UpdateMask.Paths, "labels."+uncompressedLabel) {
		f.labels[r.Info.Digest] = r.Info.Labels[uncompressedLabel]
	}
	return &content.UpdateResponse{Info: r.Info}, nil
}

func (f *fakeContent) List(r *content.ListContentRequest, stream content.Content_ListServer) error {
	for digest, diffID := range f.labels {
		if slices.Contains(r.Filters, `labels."containerd.io/uncompressed"=="`+diffID+`"`) {
			return stream.Send(&content.ListContentResponse{Info: []*content.Info{{Digest: digest,
				Size: int64(len(f.blobs[digest]))}}})
		}
	}
	return stream.Send(&content.ListContentResponse{})
}

func (f *fakeContent) Read(r *content.ReadContentRequest, stream content.Content_ReadServer) error {
	if r.Digest == f.removed {
		return status.Error(codes.NotFound, r.Digest)
	}
	for part := range slices.Chunk(f.blobs[r.Digest], 1000) {
		if err := stream.Send(&content.ReadContentResponse{Data: part}); err != nil {
			return err
		}
	}
	return nil
}

func (f *fakeContent) Write(stream content.Content_WriteServer) error {
	var expected string
	for {
		request, err := stream.Recv()
		if err != nil {
			return nil
		}
		reply := &content.WriteContentResponse{Action: request.Action}
		switch request.Action {
		case content.WriteAction_STAT:
			expected = request.Expected
			if _, is := f.blobs[expected]; is {
				return status.Error(codes.AlreadyExists, expected)
			}
			if f.shared == expected {
				reply.Offset = request.Total
			}
		case content.WriteAction_WRITE:
			if f.fails != nil {
				return f.fails
			}
			if request.Offset != int64(len(f.given)) {
				return status.Error(codes.OutOfRange, "offset")
			}
			f.given = append(f.given, request.Data...)
		case content.WriteAction_COMMIT:
			if f.shared != expected &&
				(digestOf(f.given) != expected || request.Offset != int64(len(f.given))) {
				return status.Error(codes.FailedPrecondition, "digest")
			}
			f.blobs[expected] = f.given
		}
		if err := stream.Send(reply); err != nil {
			return err
		}
	}
}

// storeOf returns the images of such a containerd.
func storeOf(t *testing.T, f *fake) *Store {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "containerd.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	content.RegisterContentServer(server, &fakeContent{fake: f})
	containers.RegisterContainersServer(server, &fakeContainers{fake: f})
	images.RegisterImagesServer(server, &fakeImages{fake: f})
	namespaces.RegisterNamespacesServer(server, &fakeNamespaces{fake: f})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	connection, err := grpc.NewClient("unix://"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return New(Config{
		Connection: connection, Away: func() error { return nil },
		Name: func(id, _ string) string { return id },
		Check: func(namespace string) error {
			if namespace != "own" {
				return errors.New("it is another's namespace")
			}
			return nil
		},
	})
}

func zipped(t *testing.T, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(data)
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestLayers: a layer is found in any namespace, compressed or not, and matches its DiffID, or reading it
// fails.
func TestLayers(t *testing.T) {
	plainLayer, packedLayer, otherLayer := bytes.Repeat([]byte("plain"), 1000),
		bytes.Repeat([]byte("packed"), 1000), []byte("other")
	packed, lie := zipped(t, packedLayer), zipped(t, otherLayer)
	f := &fake{
		names: []string{"moby", "own"}, blobs: map[string][]byte{digestOf(plainLayer): plainLayer,
			digestOf(packed): packed, digestOf(lie): lie},
		labels: map[string]string{digestOf(packed): digestOf(packedLayer),
			digestOf(lie): digestOf([]byte("lie"))},
	}
	s := storeOf(t, f)
	for range 2 {
		for _, layer := range [][]byte{plainLayer, packedLayer} {
			if bytes, err := s.LayerBytes(digestOf(layer)); err != nil || bytes != int64(len(layer)) {
				t.Errorf("%d bytes, %v; want %d", bytes, err, len(layer))
			}
		}
	}
	for _, layer := range [][]byte{plainLayer, packedLayer} {
		archive, err := s.OpenLayer(digestOf(layer))
		if err != nil {
			t.Fatal(err)
		}
		if read, err := io.ReadAll(archive); err != nil || !bytes.Equal(read, layer) {
			t.Errorf("%d bytes, %v; want %d", len(read), err, len(layer))
		}
		archive.Close()
	}
	if _, err := s.LayerBytes(digestOf([]byte("lie"))); !errors.Is(err, imagestore.ErrInvalid) {
		t.Errorf("a label that lies: %v", err)
	}
	f.blobs[digestOf(plainLayer)] = otherLayer
	archive, err := s.OpenLayer(digestOf(plainLayer))
	if err == nil {
		_, err = io.ReadAll(archive)
	}
	if !errors.Is(err, imagestore.ErrInvalid) {
		t.Errorf("damaged content: %v", err)
	}
	for _, unknown := range []string{digestOf([]byte("unknown")), "", `sha256:x"==x`} {
		if _, err := s.OpenLayer(unknown); !errors.Is(err, engine.ErrNoLayer) {
			t.Errorf("%q: %v", unknown, err)
		}
	}
}

// TestImage: an image is found by its content, even behind an index; damaged, large, endless or removed
// images, and images for others, do not count and do not hide others.
func TestImage(t *testing.T) {
	layer := digestOf([]byte("layer"))
	config,
		err := json.Marshal(map[string]any{"rootfs": map[string]any{"type": "layers",
		"diff_ids": []string{layer}}})
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{names: []string{"own"}, blobs: map[string][]byte{digestOf(config): config},
		targets: map[string]*types.Descriptor{}}
	add := func(name string, kind mediatypes.MediaType, value any) *types.Descriptor {
		raw, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		f.blobs[digestOf(raw)] = raw
		target := &types.Descriptor{MediaType: string(kind), Digest: digestOf(raw)}
		if name != "" {
			f.targets[name] = target
		}
		return target
	}
	hash := func(digest string) v1.Hash {
		h, err := v1.NewHash(digest)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	manifest := add("docker.io/library/web:1", mediatypes.OCIManifestSchema1,
		v1.Manifest{Config: v1.Descriptor{Digest: hash(digestOf(config))}})
	index := v1.IndexManifest{Manifests: []v1.Descriptor{
		{MediaType: mediatypes.OCIManifestSchema1,
			Digest: hash(digestOf([]byte("of another platform, not here")))},
		{MediaType: mediatypes.OCIManifestSchema1, Digest: hash(manifest.Digest)},
		{MediaType: "application/vnd.containerd.container.criu.checkpoint.criu.tar",
			Digest: hash(manifest.Digest)},
	}}
	add("localhost/web:2", mediatypes.OCIImageIndex, index)
	add("not/an/image", mediatypes.OCIManifestSchema1, "x")
	add("none/of/an/image", mediatypes.OCIManifestSchema1, v1.Manifest{})
	large := bytes.Repeat([]byte(" "), imagestore.MaxConfig+1)
	f.blobs[digestOf(large)] = large
	f.targets["large/x:1"] = &types.Descriptor{MediaType: string(mediatypes.OCIImageIndex),
		Digest: digestOf(large)}
	add("large/config:1", mediatypes.OCIManifestSchema1,
		v1.Manifest{Config: v1.Descriptor{Digest: hash(digestOf(large))}})
	endless := digestOf([]byte("endless"))
	f.blobs[endless], f.understated = large, endless
	f.targets["endless/x:1"] = &types.Descriptor{MediaType: string(mediatypes.OCIImageIndex), Digest: endless}
	damaged := digestOf([]byte("damaged"))
	f.blobs[damaged] = []byte("{}")
	f.targets["damaged/x:1"] = &types.Descriptor{MediaType: string(mediatypes.OCIManifestSchema1),
		Digest: damaged}
	removed := digestOf([]byte("removed"))
	f.blobs[removed], f.removed = []byte("{}"), removed
	f.targets["removed/x:1"] = &types.Descriptor{MediaType: string(mediatypes.OCIManifestSchema1),
		Digest: removed}
	f.targets["../path"] = &types.Descriptor{Digest: "../x"}
	s := storeOf(t, f)
	found, err := s.Image(t.Context(), digestOf(config))
	slices.Sort(found.Names)
	if err != nil || !slices.Equal(found.Names, []string{"localhost/web:2", "web:1"}) ||
		!slices.Equal(found.Layers, []string{layer}) || !bytes.Equal(found.Config, config) {
		t.Errorf("%+v, %v", found, err)
	}
	if all, err := s.AllImages(t.Context()); err != nil || len(all) != 2 {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := s.Image(t.Context(), layer); !errors.Is(err, engine.ErrNoImage) {
		t.Errorf("what is no image: %v", err)
	}
	f.blobs[digestOf(config)] = []byte("{}")
	if _, err := s.Image(t.Context(), digestOf(config)); !errors.Is(err, engine.ErrNoImage) {
		t.Errorf("a damaged configuration: %v", err)
	}
}

// TestPut: containerd gets the complete content that it lacks; it does not get content that any namespace
// has.
func TestPut(t *testing.T) {
	large := bytes.Repeat([]byte("content"), sendAtOnce/3)
	d := &types.Descriptor{Digest: digestOf(large), Size: int64(len(large))}
	never := func() (io.ReadCloser, error) { return nil, errors.New("it is opened") }
	for what, c := range map[string]struct {
		fake *fake
		open func() (io.ReadCloser, error)
		want string // in the error
	}{
		"new":       {&fake{}, opener(large), ""},
		"there":     {&fake{blobs: map[string][]byte{d.Digest: large}}, never, ""},
		"elsewhere": {&fake{shared: d.Digest}, never, ""},
		"short":     {&fake{}, opener(large[1:]), "digest"},
		"other":     {&fake{}, opener([]byte("other")), "digest"},
		"no room": {&fake{fails: status.Error(codes.ResourceExhausted, "no space left")}, opener(large),
			"no space left"},
		"not to be had": {&fake{}, func() (io.ReadCloser, error) { return nil, engine.ErrNoLayer },
			engine.ErrNoLayer.Error()},
	} {
		if c.fake.blobs == nil {
			c.fake.blobs = map[string][]byte{}
		}
		err := storeOf(t, c.fake).put(Within(t.Context(), "own"), d, nil, c.open)
		if c.want == "" && err != nil || c.want != "" &&
			(err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}

// TestLabel: existing content gets additional labels, and keeps its own.
func TestLabel(t *testing.T) {
	labelled, plain := []byte("labelled"), []byte("plain")
	f := &fake{
		blobs:  map[string][]byte{digestOf(labelled): labelled, digestOf(plain): plain},
		labels: map[string]string{digestOf(labelled): "its own"},
	}
	s := storeOf(t, f)
	for _, data := range [][]byte{labelled, plain} {
		d := &types.Descriptor{Digest: digestOf(data), Size: int64(len(data))}
		if err := s.put(Within(t.Context(), "own"), d, map[string]string{uncompressedLabel: "another's"},
			opener(data)); err != nil {
			t.Error(err)
		}
	}
	if f.labels[digestOf(labelled)] != "its own" || f.labels[digestOf(plain)] != "another's" {
		t.Errorf("%q", f.labels)
	}
}

// TestTakeRefuses: an image for another user's namespace, or for none, is refused.
func TestTakeRefuses(t *testing.T) {
	s := storeOf(t, &fake{})
	for _, namespace := range []string{"moby", ""} {
		image := engine.Image{ID: digestOf(nil), Layers: []string{digestOf(nil)}, Namespace: namespace}
		if err := s.Take(t.Context(), image, nil); err == nil || !strings.Contains(err.Error(), "namespace") {
			t.Errorf("%q: %v", namespace, err)
		}
	}
}

// TestName: an image gets the name of its container if that is free and the image is the container's; its
// ID stays a name as long as a container uses it.
func TestName(t *testing.T) {
	const name = "docker.io/library/web:1"
	layers := []string{digestOf([]byte("layer"))}
	config,
		err := json.Marshal(map[string]any{"rootfs": map[string]any{"type": "layers", "diff_ids": layers}})
	if err != nil {
		t.Fatal(err)
	}
	id := digestOf(config)
	raw := []byte(`{"schemaVersion":2,"config":{"digest":"` + id + `"}}`)
	target := &types.Descriptor{MediaType: string(mediatypes.OCIManifestSchema1), Digest: digestOf(raw)}
	for what, c := range map[string]struct {
		layers []string
		taken  bool
		runs   string
		names  []string
	}{
		"as it came":         {layers, false, "", []string{name}},
		"its name is taken":  {layers, true, "", []string{name, id}},
		"another's layers":   {[]string{id}, false, "", []string{id}},
		"a container has it": {layers, false, id, []string{name, id}},
	} {
		f := &fake{names: []string{"own"}, runs: c.runs,
			blobs:   map[string][]byte{id: config, target.Digest: raw},
			targets: map[string]*types.Descriptor{id: target}}
		if c.taken {
			f.targets[name] = &types.Descriptor{Digest: id}
		}
		storeOf(t, f).Name(t.Context(),
			engine.Definition{Namespace: "own", Image: name, ImageID: id, Layers: c.layers})
		if names := slices.Sorted(maps.Keys(f.targets)); !slices.Equal(names, c.names) || c.taken &&
			f.targets[name].Digest != id {
			t.Errorf("%s: it has the names %q, want %q", what, names, c.names)
		}
	}
}
