package proof

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files/shared"
	"github.com/godwit/godwit/internal/wire/identity"
)

// places are where volumes are: at their sources, unless these are not to be found.
type places struct{}

var errNoPlace = errors.New("no such volume")

func (places) VolumePath(v engine.Volume) (string, error) {
	if v.Source == "" {
		return "", errNoPlace
	}
	return v.Source, nil
}

func directory(path string) engine.Volume {
	return engine.Volume{Kind: engine.Bind, Source: path, Path: "/x"}
}

func proverOf(t *testing.T, nodes Nodes) *Prover {
	t.Helper()
	return New(filepath.Join(t.TempDir(), "proofs"), places{}, nodes, slog.New(slog.DiscardHandler))
}

// other is another node as it is asked. It sees what this one does, or answers as it is told to.
type other struct {
	api.UnimplementedPeerServer
	answers func(*api.ProveRequest) (*api.ProveReply, error)
	address string
}

func (o *other) Prove(_ context.Context, request *api.ProveRequest) (*api.ProveReply, error) {
	return o.answers(request)
}

func (o *other) Client(identity.Node) (*grpc.ClientConn, error) {
	return grpc.NewClient(o.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

func reached(t *testing.T, answers func(*api.ProveRequest) (*api.ProveReply, error)) *other {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := &other{answers: answers, address: listener.Addr().String()}
	server := grpc.NewServer()
	api.RegisterPeerServer(server, o)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return o
}

// TestLeftTokensAreRemoved ends an agent between the making of tokens and their removal.
func TestLeftTokensAreRemoved(t *testing.T) {
	p := proverOf(t, nil)
	host, gone := t.TempDir(), t.TempDir()
	left, err := p.claim([]engine.Volume{directory(host), directory(gone)})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(gone); err != nil {
		t.Fatal(err)
	}
	notes := p.Left()
	if entries, err := os.ReadDir(host); err != nil || len(entries) != 1 || len(notes) != 1 {
		t.Fatalf("tokens %v, notes %v, %v", entries, notes, err)
	}
	p.RemoveLeft(notes) // by the next agent
	if entries, err := os.ReadDir(host); err != nil || len(entries) != 0 {
		t.Errorf("tokens left: %v, %v", entries, err)
	}
	if notes := p.Left(); len(notes) != 0 {
		t.Errorf("notes left: %v", notes)
	}
	for _, made := range left.made {
		_ = made.Remove()
	}
	// A note that names something else does no harm.
	precious := filepath.Join(host, "precious")
	note, err := json.Marshal([]string{precious, "/etc/../etc/passwd"})
	if err == nil {
		err = os.WriteFile(precious, nil, 0o600)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(p.dir, "00.json"), note, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.RemoveLeft(p.Left())
	if _, err := os.Stat(precious); err != nil {
		t.Error("a file that is no token was removed")
	}
}

// TestProve: a node that sees the token shares the volume, and whatever it answers instead is no proof. No
// token stays.
func TestProve(t *testing.T) {
	same := func(request *api.ProveRequest) (*api.ProveReply, error) {
		reply := &api.ProveReply{}
		for _, one := range request.Proofs {
			answer, err := proverOf(t, nil).Answer(one)
			if err != nil {
				return nil, err
			}
			reply.Proven = append(reply.Proven, &api.Proven{
				Token: answer.Token, Reply: answer.Reply, Locked: answer.Locked, Device: answer.Device,
				Inode: answer.Inode,
			})
		}
		return reply, nil
	}
	says := func(proven ...*api.Proven) func(*api.ProveRequest) (*api.ProveReply, error) {
		return func(*api.ProveRequest) (*api.ProveReply, error) {
			return &api.ProveReply{Proven: proven},
				nil
		}
	}
	for _, one := range []struct {
		what    string
		answers func(*api.ProveRequest) (*api.ProveReply, error)
		want    Proof
		failed  string
	}{
		{"it sees the same", same, Proof{Shared: true}, ""},
		{"it sees nothing", says(&api.Proven{}), Proof{}, ""},
		{"it cannot look", says(&api.Proven{Error: "stale file handle"}), Proof{Unsure: true}, ""},
		{"it makes something up", says(&api.Proven{Token: "x", Reply: "y"}), Proof{OneWay: true}, ""},
		{"it answers for another number", says(), Proof{}, "0 of 1"},
		{"it fails", func(*api.ProveRequest) (*api.ProveReply, error) { return nil, errNoPlace }, Proof{},
			errNoPlace.Error()},
	} {
		dir := t.TempDir()
		p := proverOf(t, reached(t, one.answers))
		proofs, err := p.Prove(t.Context(), identity.Node{Name: "b"}, []engine.Volume{directory(dir)})
		switch {
		case one.failed != "":
			if err == nil || !strings.Contains(err.Error(), one.failed) {
				t.Errorf("%s: %v", one.what, err)
			}
		case err != nil || len(proofs) != 1:
			t.Errorf("%s: %+v, %v", one.what, proofs, err)
		case proofs[0].Shared != one.want.Shared || proofs[0].Unsure != one.want.Unsure ||
			proofs[0].OneWay != one.want.OneWay:
			t.Errorf("%s: %+v", one.what, proofs[0])
		case !proofs[0].Shared && proofs[0].Why == "":
			t.Errorf("%s: it does not say why", one.what)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 || len(p.Left()) > 0 {
			t.Errorf("%s: left are %v and %v, %v", one.what, entries, p.Left(), err)
		}
	}
}

// TestNothingToProve: without volumes nobody is asked, and a volume that is not there is an error.
func TestNothingToProve(t *testing.T) {
	p := proverOf(t, nil)
	if proofs, err := p.Prove(t.Context(), identity.Node{}, nil); proofs != nil || err != nil {
		t.Errorf("%v, %v", proofs, err)
	}
	if _, err := p.Prove(t.Context(), identity.Node{}, []engine.Volume{{}}); !errors.Is(err, errNoPlace) {
		t.Error(err)
	}
	for _, one := range []*api.Proof{{}, {Volume: &api.Volume{}}} {
		if answer, err := p.Answer(one); err == nil {
			t.Errorf("%v is answered: %+v", one, answer)
		}
	}
}

// TestClaimsAreJudged: what a node says of tokens is believed only if its answer is where it must be.
func TestClaimsAreJudged(t *testing.T) {
	prover := proverOf(t, nil)
	host := t.TempDir()
	tokens, err := prover.claim([]engine.Volume{directory(host), directory(filepath.Join(host, "none"))})
	if err != nil {
		t.Fatal(err)
	}
	found, err := shared.Find(host, filepath.Base(tokens.files[0]))
	if err != nil {
		t.Fatal(err)
	}
	good := &api.Proven{Token: found.Token, Reply: found.Reply}
	if p := tokens.check(0, good); !p.Shared || p.OneWay || p.Same {
		t.Errorf("a proof without inodes, as of an older node: %+v", p)
	}
	good.Device, good.Inode = found.Device, found.Inode
	if p := tokens.check(0, good); !p.Shared || !p.Same {
		t.Errorf("a proof: %+v", p)
	}
	if p := tokens.check(1, good); p.Shared || p.Why == "" || !p.Unsure {
		t.Errorf("where there was no token: %+v", p)
	}
	if p := tokens.check(0, &api.Proven{Error: "read-only"}); p.Shared || !p.Unsure {
		t.Errorf("not answered: %+v", p)
	}
	if p := tokens.check(0, &api.Proven{}); p.Shared || p.OneWay || p.Unsure || p.Why == "" {
		t.Errorf("not found: %+v", p)
	}
	if p := tokens.check(0, &api.Proven{Token: found.Reply, Reply: found.Token}); p.Shared || !p.OneWay {
		t.Errorf("lies: %+v", p)
	}
	if err := tokens.remove(); err != nil || len(prover.Left()) > 0 {
		t.Errorf("tokens not removed: %v", err)
	}
}
