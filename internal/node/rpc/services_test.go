package rpc

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/audit"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/files/image"
	"github.com/godwit/godwit/internal/files/shared"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/transfer/layers"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
)

var errFailed = errors.New("failed")

// callFrom is the context of a call that a node makes.
func callFrom(t *testing.T, node string) context.Context {
	t.Helper()
	caller := wire.AuthInfo{Peer: identity.Peer{Name: node, Number: 2}}
	return grpcpeer.NewContext(t.Context(), &grpcpeer.Peer{AuthInfo: caller})
}

// replies is a stream that keeps what is sent over it.
type replies[T any] struct {
	grpc.ServerStreamingServer[T]
	ctx  context.Context
	sent []*T
	err  error // of Send
}

func (r *replies[T]) Context() context.Context { return r.ctx }

func (r *replies[T]) Send(one *T) error {
	r.sent = append(r.sent, one)
	return r.err
}

func TestErrorCodes(t *testing.T) {
	if Error(nil) != nil {
		t.Error("nothing is an error")
	}
	for _, one := range []struct {
		err  error
		code codes.Code
		text string
	}{
		{errFailed, codes.Unknown, "failed"},
		{status.Error(codes.DataLoss, "lost"), codes.DataLoss, "lost"},
		{engine.ErrNotFound, codes.NotFound, engine.ErrNotFound.Error()},
		{engine.ErrNoVolume, codes.NotFound, engine.ErrNoVolume.Error()},
		{engine.ErrNameTaken, codes.AlreadyExists, engine.ErrNameTaken.Error()},
		{engine.ErrBusy, codes.FailedPrecondition, engine.ErrBusy.Error()},
		{context.Canceled, codes.Canceled, context.Canceled.Error()},
		{errors.Join(api.ErrInvalid, errFailed), codes.InvalidArgument, "invalid request\nfailed"},
		{wrapped{api.ErrInvalid}, codes.InvalidArgument, "why"},
		{wrapped{api.ErrRefused}, codes.FailedPrecondition, "why"},
	} {
		if s := status.Convert(Error(one.err)); s.Code() != one.code || s.Message() != one.text {
			t.Errorf("%v: %s %q", one.err, s.Code(), s.Message())
		}
	}
}

// wrapped is an error of a caller, with its reason.
type wrapped struct{ error }

func (w wrapped) Error() string { return w.error.Error() + ": why" }

func (w wrapped) Unwrap() error { return w.error }

func TestCaller(t *testing.T) {
	if name, err := Caller(callFrom(t, "a")); name != "a" || err != nil {
		t.Errorf("%q, %v", name, err)
	}
	if _, err := Caller(t.Context()); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a caller without a certificate: %v", err)
	}
}

// store has one image, in which one layer is, and one volume.
type store struct {
	err     error
	loaded  string
	removed func(string) bool
	has     []engine.Container
}

func (s *store) LoadStream(_ context.Context, archive io.Reader, progress image.Progress) ([]image.Image,
	error) {
	content, err := io.ReadAll(archive)
	if err != nil {
		return nil, err
	}
	s.loaded = string(content)
	progress("layer 1")
	return []image.Image{{ID: "one"}}, s.err
}

func (s *store) Pull(context.Context, string, image.PullOptions, image.Progress) (image.Image, error) {
	return image.Image{ID: "one", Names: []string{"web:1"}}, s.err
}

func (s *store) List() ([]image.Image, error) { return []image.Image{{ID: "one", Size: 5}}, s.err }

func (s *store) Remove(_ context.Context, _ string, inUse func(string) bool) error {
	s.removed = inUse
	return s.err
}

func (s *store) Volumes(context.Context) ([]engine.StoredVolume, error) {
	return []engine.StoredVolume{{Name: "data", Path: "/none/there"}}, s.err
}

func (s *store) RemoveVolume(context.Context, string) error { return s.err }

// containers are those of an engine.
type containers struct{ *store }

func (c containers) List(context.Context) ([]engine.Container, error) { return c.has, c.err }

// chunks is a stream with an archive in pieces.
type chunks struct {
	grpc.BidiStreamingServer[api.Chunk, api.ImageProgress]
	ctx  context.Context
	rest []string
	sent []*api.ImageProgress
}

func (c *chunks) Context() context.Context { return c.ctx }

func (c *chunks) Send(one *api.ImageProgress) error {
	c.sent = append(c.sent, one)
	return nil
}

func (c *chunks) Recv() (*api.Chunk, error) {
	if len(c.rest) == 0 {
		return nil, io.EOF
	}
	chunk := &api.Chunk{Data: []byte(c.rest[0])}
	c.rest = c.rest[1:]
	return chunk, nil
}

func TestImages(t *testing.T) {
	has := &store{has: []engine.Container{{Definition: engine.Definition{ImageID: "one"}}}}
	service := &ImageService{Store: has, Containers: containers{has}}
	archive := &chunks{ctx: t.Context(), rest: []string{"ab", "", "c"}}
	if err := service.LoadImage(archive); err != nil || has.loaded != "abc" || len(archive.sent) != 2 ||
		archive.sent[0].Text != "layer 1" || archive.sent[1].Image.GetId() != "one" {
		t.Errorf("%v: %q, %v", err, has.loaded, archive.sent)
	}
	pulled := &replies[api.ImageProgress]{ctx: t.Context()}
	err := service.PullImage(&api.PullImageRequest{Reference: "web:1"}, pulled)
	if err != nil || len(pulled.sent) != 1 || pulled.sent[0].Image.GetNames()[0] != "web:1" {
		t.Errorf("%v: %v", err, pulled.sent)
	}
	if list, err := service.ListImages(t.Context(), nil); err != nil || list.Images[0].SizeBytes != 5 {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := service.RemoveImage(t.Context(), &api.RemoveImageRequest{}); err != nil ||
		!has.removed("one") || has.removed("two") {
		t.Errorf("%v: an image is taken for unused or for used, wrongly", err)
	}
	has.has[0].State = engine.Damaged // nobody knows of which image it is
	if _, err := service.RemoveImage(t.Context(), &api.RemoveImageRequest{}); err != nil ||
		!has.removed("two") {
		t.Errorf("%v: with a damaged container an image is taken for unused", err)
	}
	has.err = errFailed
	if err := errors.Join(service.LoadImage(&chunks{ctx: t.Context()}), service.PullImage(
		&api.PullImageRequest{}, pulled)); strings.Count(err.Error(), "failed") != 2 {
		t.Errorf("errors of the store: %v", err)
	}
	_, listed := service.ListImages(t.Context(), nil)
	if _, err := service.RemoveImage(t.Context(), nil); err == nil || listed == nil {
		t.Errorf("errors of the store: %v, %v", err, listed)
	}
}

func TestVolumes(t *testing.T) {
	has := &store{}
	service := &VolumeService{Store: has}
	if list, err := service.Volumes(t.Context(), nil); err != nil ||
		!strings.Contains(string(list.VolumesJson[0]), `"data"`) {
		t.Errorf("%v, %v", list, err)
	}
	_, err := service.InspectVolume(t.Context(), &api.VolumeRequest{Name: "none"})
	if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "godwit volume ls") {
		t.Errorf("a volume that is not there: %v", err)
	}
	if _, err := service.InspectVolume(t.Context(), &api.VolumeRequest{Name: "data"}); err == nil {
		t.Error("a volume without a directory has a size")
	}
	has.err = errFailed
	_, listed := service.Volumes(t.Context(), nil)
	_, inspected := service.InspectVolume(t.Context(), &api.VolumeRequest{})
	if _, err := service.RemoveVolume(t.Context(), &api.VolumeRequest{}); err == nil || listed == nil ||
		inspected == nil {
		t.Errorf("errors of the store: %v, %v, %v", err, listed, inspected)
	}
}

// answers proves the first volume only.
type answers struct{ count int }

func (a *answers) Answer(*api.Proof) (shared.Answer, error) {
	switch a.count++; a.count {
	case 1:
		return shared.Answer{Token: "token"}, nil
	case 2:
		return shared.Answer{}, shared.ErrNotShared
	}
	return shared.Answer{}, errFailed
}

func TestProve(t *testing.T) {
	service := &ProofService{Proofs: &answers{}}
	request := &api.ProveRequest{Proofs: []*api.Proof{{}, {}, {}}}
	reply, err := service.Prove(callFrom(t, "a"), request)
	if err != nil || len(reply.Proven) != 3 || reply.Proven[0].Token != "token" ||
		reply.Proven[1].Error != "" || reply.Proven[2].Error != "failed" {
		t.Errorf("%v, %v", reply, err)
	}
	if _, err := service.Prove(t.Context(), request); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a caller without a certificate: %v", err)
	}
	many := &api.ProveRequest{Proofs: make([]*api.Proof, envelopes.MaxParts+1)}
	if _, err := service.Prove(callFrom(t, "a"), many); status.Code(err) != codes.InvalidArgument {
		t.Errorf("too many volumes: %v", err)
	}
	gone, cancel := context.WithCancel(callFrom(t, "a"))
	cancel()
	if _, err := service.Prove(gone, request); !errors.Is(err, context.Canceled) {
		t.Errorf("for a caller that is gone: %v", err)
	}
}

// cluster does what members may do, or fails.
type cluster struct{ err error }

func (c cluster) RemoveNode(context.Context, string, bool) (*api.RemoveNodeReply, error) {
	return &api.RemoveNodeReply{}, c.err
}
func (c cluster) PromoteNode(context.Context, string) error { return c.err }
func (c cluster) DemoteNode(context.Context, string) error  { return c.err }
func (c cluster) RollOver(context.Context, *api.RolloverRequest) (*api.RolloverReply, error) {
	return &api.RolloverReply{}, c.err
}
func (c cluster) RolloverStatus() *api.RolloverReply      { return &api.RolloverReply{} }
func (c cluster) TakeAuthority([]byte) error              { return c.err }
func (c cluster) DropAuthority([]byte) ([]byte, error)    { return []byte("rest"), c.err }
func (c cluster) Find(name string) (identity.Node, error) { return identity.Node{Name: name}, c.err }
func (c cluster) MayFill(string) error                    { return c.err }
func (c cluster) MayRead(string) error                    { return c.err }
func (c cluster) Read(_ time.Time, each func(audit.Entry) error) error {
	return errors.Join(each(audit.Entry{Method: "Migrate"}), c.err)
}

func (c cluster) Fetch(_ context.Context, from identity.Node, _ *api.FetchRequest,
	tell func(migration.Layers) error) error {
	if from.Name != "a" {
		return errFailed
	}
	return tell(migration.Layers{})
}

func (c cluster) Here(diffIDs []string) []*api.Layer { return make([]*api.Layer, len(diffIDs)) }

func TestMembers(t *testing.T) {
	for _, want := range []error{nil, errFailed} {
		does := cluster{want}
		service := &MemberService{Members: does}
		authority := &AuthorityService{Identity: does, Log: slog.New(slog.DiscardHandler)}
		from := callFrom(t, "a")
		_, removed := service.RemoveNode(from, &api.RemoveNodeRequest{})
		_, promoted := service.PromoteNode(from, &api.NodeRequest{})
		_, demoted := service.DemoteNode(from, &api.NodeRequest{})
		_, begun := service.Rollover(from, &api.RolloverRequest{})
		_, taken := authority.TakeAuthority(from, &api.TakeAuthorityRequest{})
		_, dropped := authority.DropAuthority(from, &api.DropAuthorityRequest{})
		for i, err := range []error{removed, promoted, demoted, begun, taken, dropped} {
			if (err != nil) != (want != nil) {
				t.Errorf("call %d: %v, want %v", i, err, want)
			}
		}
		if _, err := service.RolloverStatus(from, nil); err != nil {
			t.Error(err)
		}
		_, taken = authority.TakeAuthority(t.Context(), nil)
		_, dropped = authority.DropAuthority(t.Context(), nil)
		if status.Code(taken) != codes.Unauthenticated || status.Code(dropped) != codes.Unauthenticated {
			t.Errorf("a caller without a certificate: %v, %v", taken, dropped)
		}
	}
}

func TestAudit(t *testing.T) {
	read := &replies[api.AuditReply]{ctx: t.Context()}
	err := (&AuditService{Calls: cluster{}}).Audit(&api.AuditRequest{SinceUnixNanoseconds: 1}, read)
	if err != nil || len(read.sent) != 1 || !strings.Contains(string(read.sent[0].EntryJson), "Migrate") {
		t.Errorf("%v, %v", read.sent, err)
	}
	read.err = errFailed
	err = (&AuditService{Calls: cluster{}}).Audit(&api.AuditRequest{}, read)
	if status.Code(err) != codes.Unknown {
		t.Errorf("a reader that is gone: %v", err)
	}
}

func TestLayers(t *testing.T) {
	service := &LayerService{Mover: cluster{}, Nodes: cluster{}, Rules: cluster{}}
	told := &replies[api.FetchReply]{ctx: callFrom(t, "a")}
	if err := service.Fetch(&api.FetchRequest{}, told); err != nil || len(told.sent) != 1 {
		t.Errorf("%v, %v", told.sent, err)
	}
	reply, err := service.Layers(callFrom(t, "a"), &api.LayersRequest{DiffIds: []string{"one"}})
	if err != nil || len(reply.Layers) != 1 {
		t.Errorf("%v, %v", reply, err)
	}
	many := &api.LayersRequest{DiffIds: make([]string, layers.Max+1)}
	if _, err := service.Layers(callFrom(t, "a"), many); status.Code(err) != codes.InvalidArgument {
		t.Errorf("too many layers: %v", err)
	}
	unknown := &LayerService{Mover: cluster{}, Nodes: cluster{errFailed}, Rules: cluster{}}
	forbidden := &LayerService{Mover: cluster{}, Nodes: cluster{}, Rules: cluster{errFailed}}
	_, read := forbidden.Layers(callFrom(t, "a"), &api.LayersRequest{})
	for what, err := range map[string]error{
		"a caller without a certificate": service.Fetch(nil, &replies[api.FetchReply]{ctx: t.Context()}),
		"a node that is not known":       unknown.Fetch(nil, told),
		"a node that may not fill":       forbidden.Fetch(nil, told),
		"a node that may not read":       read,
		"a fetch that fails":             service.Fetch(nil, &replies[api.FetchReply]{ctx: callFrom(t, "c")}),
	} {
		if err == nil {
			t.Errorf("%s gets layers", what)
		}
	}
}

// running has a container that runs, one that is being moved, and one that has ended.
type running struct{ err error }

func containerCalled(name string, state engine.State) engine.Container {
	return engine.Container{Definition: engine.Definition{ID: name, Name: name}, State: state}
}

func (r running) Inspect(_ context.Context, reference string) (engine.Container, error) {
	return containerCalled(reference, engine.Exited), r.err
}

func (r running) ListAnswered(context.Context) ([]engine.Container, error) {
	return []engine.Container{containerCalled("web", engine.Running),
		containerCalled("moves", engine.Running), containerCalled("ended", engine.Exited)}, r.err
}

func (r running) Watch(engine.Definition) {}

func (r running) Measure(_ context.Context, of engine.Definition, window,
	_ time.Duration) predict.Measured {
	return predict.Measured{ID: of.ID, Name: of.Name, State: window.String()}
}

func (r running) Last(string) (predict.Measured, bool) { return predict.Measured{}, false }

func TestTop(t *testing.T) {
	service := &TopService{Node: "b", Containers: running{}, Samples: running{},
		Moving: func(container string) bool { return container == "moves" },
		Log:    slog.New(slog.DiscardHandler)}
	states := func(request *api.TopRequest) (found []string) {
		t.Helper()
		reply, err := service.Top(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range reply.MeasuredJson {
			_, state, _ := strings.Cut(string(document), `"state":"`)
			state, _, _ = strings.Cut(state, `"`)
			found = append(found, state)
		}
		return found
	}
	want := []string{"1m0s", "being moved"}
	if got := states(&api.TopRequest{WindowSeconds: 3600}); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := states(&api.TopRequest{Container: "ended"}); !slices.Equal(got, []string{"exited"}) {
		t.Errorf("of one that has ended: %q", got)
	}
	service.Containers = running{errFailed}
	_, one := service.Top(t.Context(), &api.TopRequest{Container: "web"})
	if _, all := service.Top(t.Context(), &api.TopRequest{}); one == nil || all == nil {
		t.Errorf("when engines do not answer: %v, %v", one, all)
	}
}
