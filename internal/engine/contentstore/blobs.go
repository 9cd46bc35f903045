package contentstore

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"

	content "github.com/containerd/containerd/api/services/content/v1"
	namespaces "github.com/containerd/containerd/api/services/namespaces/v1"
	"github.com/containerd/containerd/api/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/godwit/godwit/internal/engine"
	imagestore "github.com/godwit/godwit/internal/files/image"
)

// uncompressedLabel is containerd's label of a compressed layer: its DiffID.
const uncompressedLabel = "containerd.io/uncompressed"

// blob is content of a namespace.
type blob struct {
	namespace, digest string
	bytes             int64
}

// spaces returns all namespaces. Content is the same in each of them.
func (s *Store) spaces(ctx context.Context) (names []string, err error) {
	listed, err := s.namespaces.List(ctx, &namespaces.ListNamespacesRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask containerd for its namespaces: %w", err)
	}
	for _, one := range listed.GetNamespaces() {
		names = append(names, one.GetName())
	}
	return names, nil
}

// info finds content by its digest; nil if there is none.
func (s *Store) info(ctx context.Context, namespace, digest string) (*blob, error) {
	reply, err := s.content.Info(Within(ctx, namespace), &content.InfoRequest{Digest: digest})
	if missing(err) {
		return nil, nil //nolint:nilnil // said
	}
	if err != nil {
		return nil, fmt.Errorf("ask containerd for content %s: %w", digest, err)
	}
	return &blob{namespace, digest, reply.GetInfo().GetSize()}, nil
}

// layer finds the archive of a layer, uncompressed if possible: its content need not match its label. nil
// if there is none.
func (s *Store) layer(ctx context.Context, diffID string) (*blob, error) {
	spaces, err := s.spaces(ctx)
	if err != nil {
		return nil, err
	}
	if found, err := s.exact(ctx, spaces, diffID); found != nil || err != nil {
		return found, err
	}
	for _, namespace := range spaces {
		if found, err := s.labelled(ctx, namespace, diffID); found != nil || err != nil {
			return found, err
		}
	}
	return nil, nil //nolint:nilnil // said
}

// exact finds content by its digest in one of several namespaces; nil if there is none.
func (s *Store) exact(ctx context.Context, spaces []string, digest string) (*blob, error) {
	for _, namespace := range spaces {
		if found, err := s.info(ctx, namespace, digest); found != nil || err != nil {
			return found, err
		}
	}
	return nil, nil //nolint:nilnil // said
}

// kept finds the content that is stored as a layer: with documents, exactly what they name, or else any
// archive of the layer.
func (s *Store) kept(ctx context.Context, image engine.Image, digest string) (*blob, error) {
	if len(image.Manifests) == 0 || !s.config.Whole {
		return s.layer(ctx, digest)
	}
	spaces, err := s.spaces(ctx)
	if err != nil {
		return nil, err
	}
	return s.exact(ctx, spaces, digest)
}

// labelled finds a compressed layer in a namespace; nil if there is none.
func (s *Store) labelled(ctx context.Context, namespace, diffID string) (*blob, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	list, err := s.content.List(Within(ctx, namespace),
		&content.ListContentRequest{Filters: []string{fmt.Sprintf("labels.%q==%q", uncompressedLabel,
			diffID)}})
	for err == nil {
		var reply *content.ListContentResponse
		reply, err = list.Recv()
		for _, one := range reply.GetInfo() {
			return &blob{namespace, one.GetDigest(), one.GetSize()}, nil
		}
	}
	if errors.Is(err, io.EOF) {
		return nil, nil //nolint:nilnil // said
	}
	return nil, fmt.Errorf("ask containerd for layer %s: %w", diffID, err)
}

// open reads content from its beginning.
func (s *Store) open(ctx context.Context, b blob) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := s.content.Read(Within(ctx, b.namespace), &content.ReadContentRequest{Digest: b.digest})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("read content %s of containerd: %w", b.digest, err)
	}
	return &blobReader{stream: stream, cancel: cancel}, nil
}

// blobReader reads content that containerd sends.
type blobReader struct {
	stream content.Content_ReadClient
	cancel context.CancelFunc
	rest   []byte
}

func (r *blobReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		reply, err := r.stream.Recv()
		if err != nil {
			return 0, err
		}
		r.rest = reply.GetData()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (r *blobReader) Close() error {
	r.cancel()
	return nil
}

// small reads content of a namespace of at most most bytes, and compares its digest. It returns nil if
// there is none, or it does not match. Any program may have put it there, for other purposes, so that is no
// error.
func (s *Store) small(ctx context.Context, namespace, digest string, most int64) ([]byte, error) {
	if imagestore.CheckDigest(digest) != nil {
		return nil, nil
	}
	found, err := s.info(ctx, namespace, digest)
	if err != nil || found == nil || found.bytes > most {
		return nil, err
	}
	in, err := s.open(ctx, *found)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	read, err := io.ReadAll(io.LimitReader(in, most+1))
	if missing(err) || err == nil && digestOf(read) != digest { // removed meanwhile, or damaged
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("content %s of containerd: %w", digest, err)
	}
	return read, nil
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// sendAtOnce is how many bytes of content go to containerd in a message.
const sendAtOnce = 1 << 20

// put stores content in containerd, in the namespace of ctx, with labels. It does not send content that
// containerd has already, in any namespace.
func (s *Store) put(ctx context.Context, d *types.Descriptor, labels map[string]string,
	open func() (io.ReadCloser, error)) error {
	err := s.write(ctx, d, labels, open)
	if status.Code(err) == codes.AlreadyExists {
		err = s.label(ctx, d.GetDigest(), labels)
	}
	if err != nil {
		return fmt.Errorf("have containerd keep %s: %w", d.GetDigest(), err)
	}
	return nil
}

// label adds labels to existing content. Its other labels stay as they are.
func (s *Store) label(ctx context.Context, digest string, labels map[string]string) error {
	found, err := s.content.Info(ctx, &content.InfoRequest{Digest: digest})
	if err != nil {
		return err
	}
	var paths []string
	for name := range labels {
		if _, has := found.GetInfo().GetLabels()[name]; !has {
			paths = append(paths, "labels."+name)
		}
	}
	if len(paths) == 0 {
		return nil
	}
	slices.Sort(paths)
	_, err = s.content.Update(ctx, &content.UpdateRequest{
		Info: &content.Info{Digest: digest, Labels: labels}, UpdateMask: &fieldmaskpb.FieldMask{Paths: paths},
	})
	return err
}

func (s *Store) write(ctx context.Context, d *types.Descriptor, labels map[string]string,
	open func() (io.ReadCloser, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.content.Write(ctx)
	if err != nil {
		return err
	}
	ask := func(request *content.WriteContentRequest) (*content.WriteContentResponse, error) {
		if err := stream.Send(request); err != nil && !errors.Is(err, io.EOF) { // the answer says why
			return nil, err
		}
		return stream.Recv()
	}
	begun := &content.WriteContentRequest{Action: content.WriteAction_STAT, Ref: rand.Text(),
		Total: d.GetSize(), Expected: d.GetDigest()}
	reply, err := ask(begun)
	if err != nil {
		return err
	}
	at := reply.GetOffset()
	if at != d.GetSize() { // otherwise another namespace has it
		if at, err = send(open, ask); err != nil {
			return err
		}
	}
	_, err = ask(&content.WriteContentRequest{
		Action: content.WriteAction_COMMIT, Total: d.GetSize(), Expected: d.GetDigest(), Offset: at,
		Labels: labels,
	})
	return err
}

// send sends content, and returns how many bytes.
func send(open func() (io.ReadCloser, error),
	ask func(*content.WriteContentRequest) (*content.WriteContentResponse, error)) (int64, error) {
	in, err := open()
	if err != nil {
		return 0, err
	}
	defer in.Close()
	buffer, at := make([]byte, sendAtOnce), int64(0)
	for {
		n, err := io.ReadFull(in, buffer)
		if n > 0 {
			if _, err := ask(&content.WriteContentRequest{Action: content.WriteAction_WRITE, Offset: at,
				Data: buffer[:n]}); err != nil {
				return at, err
			}
			at += int64(n)
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return at, nil
		case err != nil:
			return at, err
		}
	}
}
