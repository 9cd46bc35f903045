package faults

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/compat"
	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

// hostilePeer attacks node a with the certificate of a node of the cluster.
func (w *world) hostilePeer(t *testing.T) {
	id := w.identity(t, stranger)
	peer := w.peer(t, id)
	t.Run("offers", func(t *testing.T) { w.badOffers(t, peer) })
	t.Run("proofs", func(t *testing.T) { w.badProofs(t, peer) })
	t.Run("silence", func(t *testing.T) { w.silence(t, peer) })
	t.Run("too many", func(t *testing.T) { w.tooMany(t, peer) })
	t.Run("others' migrations", func(t *testing.T) { w.othersMigrations(t, peer) })
	t.Run("data", func(t *testing.T) { w.badData(t, id) })
	t.Run("layers", func(t *testing.T) { w.badLayers(t, id, peer) })
}

// secured makes a connection to node a with a certificate.
func (w *world) secured(t *testing.T, id *identity.Identity, protocol string) net.Conn {
	t.Helper()
	authority, err := x509.ParseCertificate(id.Certificate().Certificate[1])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority)
	conn := tls.Client(w.toPort(t), &tls.Config{
		Certificates: []tls.Certificate{*id.Certificate()}, RootCAs: roots,
		ServerName: identity.ServerName("a"), NextProtos: []string{protocol}, MinVersion: tls.VersionTLS13,
	})
	if err := conn.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func (w *world) peer(t *testing.T, id *identity.Identity) api.PeerClient {
	t.Helper()
	client, err := grpc.NewClient("passthrough:///a",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn,
			error) {
			return w.secured(t, id, "h2"), nil
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return api.NewPeerClient(client)
}

// offer returns an offer that node a could accept.
func (w *world) offer(t *testing.T, number int) (*api.Offer, engine.Definition) {
	t.Helper()
	machine, err := kernel.ReadMachine()
	if err != nil {
		t.Fatal(err)
	}
	tool, err := criu.Find()
	if err != nil {
		t.Fatal(err)
	}
	platform, err := json.Marshal(migration.Platform{
		Architecture: machine.Architecture, CPUModel: machine.CPUModel, CPUFeatures: machine.CPUFeatures,
		Kernel: machine.KernelRelease, PageBytes: machine.PageSizeBytes, CRIU: tool.Version.String(),
	})
	if err != nil {
		t.Fatal(err)
	}
	definition := w.find(t, "a", container).Definition
	definition.ID, definition.Name, definition.Engine = fmt.Sprintf("%064x", number),
		fmt.Sprintf("guest-%d", number), nil
	host := byte(10 + number%200)
	definition.Network.Address = netip.AddrFrom4([4]byte{10, 88, 3, host})
	definition.Network.MAC = fmt.Sprintf("0a:58:0a:58:03:%02x", host)
	return &api.Offer{
		Protocol: uint32(compat.Ours().Newest), Migration: fmt.Sprintf("%016x", number), Mode: "cold",
		DefinitionJson: encode(t, definition),
		PlatformJson:   platform, MemoryBytes: 1 << 20, TreesBytes: 1 << 20,
		StartedUnixNanoseconds: time.Now().UnixNano(),
	}, definition
}

func encode(t *testing.T, value any) []byte {
	t.Helper()
	document, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return document
}

// open begins a session with an offer and returns node a's answer.
func open(ctx context.Context, peer api.PeerClient, offer *api.Offer) (*api.Envelope, error) {
	session, err := peer.Session(ctx)
	if err != nil {
		return nil, err
	}
	first := &api.Envelope{Offer: offer, Message: &api.Message{Kind: string(migration.KindReserve)}}
	if err := session.Send(first); err != nil {
		return nil, err
	}
	go func() { // until ctx ends: a silent peer counts as lost
		for session.Send(&api.Envelope{}) == nil {
			time.Sleep(100 * time.Millisecond)
		}
	}()
	for {
		answer, err := session.Recv()
		if err != nil || answer.Message != nil { // others are only signs of life
			return answer, err
		}
	}
}

// badOffers must all be refused: by an error, or by the machine's never-ran.
func (w *world) badOffers(t *testing.T, peer api.PeerClient) {
	define := func(change func(*engine.Definition)) func(*api.Offer, engine.Definition) {
		return func(o *api.Offer, d engine.Definition) {
			change(&d)
			o.DefinitionJson = encode(t, d)
		}
	}
	tried := 0
	for name, change := range map[string]func(*api.Offer, engine.Definition){
		"no definition":      func(o *api.Offer, _ engine.Definition) { o.DefinitionJson = nil },
		"garbage definition": func(o *api.Offer, _ engine.Definition) { o.DefinitionJson = []byte("{{{") },
		"garbage platform":   func(o *api.Offer, _ engine.Definition) { o.PlatformJson = []byte("]") },
		"another architecture": func(o *api.Offer,
			_ engine.Definition) {
			o.PlatformJson = []byte(`{"architecture":"s390x"}`)
		},
		"another version":     func(o *api.Offer, _ engine.Definition) { o.Protocol = 99 },
		"unknown mode":        func(o *api.Offer, _ engine.Definition) { o.Mode = "warp" },
		"a path as migration": func(o *api.Offer, _ engine.Definition) { o.Migration = "../../../../x" },
		"negative memory":     func(o *api.Offer, _ engine.Definition) { o.MemoryBytes = -1 },
		"endless memory":      func(o *api.Offer, _ engine.Definition) { o.MemoryBytes = 1<<63 - 1 },
		"endless files":       func(o *api.Offer, _ engine.Definition) { o.TreesBytes = 1<<63 - 1 },
		"a path as container": define(func(d *engine.Definition) {
			d.ID = "../../" +
				strings.Repeat("0", 58)
		}),
		"a path as name":  define(func(d *engine.Definition) { d.Name = "../x" }),
		"a path as layer": define(func(d *engine.Definition) { d.Layers = []string{"sha256:../../../etc"} }),
		"a volume outside": define(
			func(d *engine.Definition) { d.Volumes = []engine.Volume{{Name: "../../etc", Path: "/x"}} }),
		"a part of the machine": define(func(d *engine.Definition) {
			d.Volumes = []engine.Volume{{Kind: engine.Bind, Source: "/etc/godwit-none", Path: "/x"}}
		}),
		"the agent's files": define(func(d *engine.Definition) {
			d.Volumes = []engine.Volume{{Kind: engine.Bind, Source: "/var/lib/godwit/volumes/none",
				Path: "/x", Stays: true}}
		}),
		"a volume that sticks out": define(func(d *engine.Definition) {
			d.Volumes = []engine.Volume{{Kind: engine.Bind, Source: "/tmp/../etc", Path: "/x", Stays: true}}
		}),
		"a volume of less than nothing": func(o *api.Offer,
			_ engine.Definition) {
			o.VolumesJson = []byte(`[{"volume":"x","bytes":-1}]`)
		},
		"garbage volumes":  func(o *api.Offer, _ engine.Definition) { o.VolumesJson = []byte("{") },
		"a container of a": define(func(d *engine.Definition) { d.ID = w.id }),
		"a name of a":      define(func(d *engine.Definition) { d.Name = container }),
		"an address of a": define(
			func(d *engine.Definition) { d.Network.Address = netip.AddrFrom4([4]byte{10, 88, 1, 2}) }),
		"an address of nobody": define(
			func(d *engine.Definition) { d.Network.Address = netip.AddrFrom4([4]byte{192, 0, 2, 1}) }),
		"engine's own nonsense": define(
			func(d *engine.Definition) { d.Engine = []byte(`{"stdio":["/etc/shadow"]}`) }),
	} {
		t.Run(name, func(t *testing.T) {
			w.unchanged(t, func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				offer, definition := w.offer(t, 1)
				tried++
				offer.Migration = fmt.Sprintf("%016x", 1000+tried)
				change(offer, definition)
				answer, err := open(ctx, peer, offer)
				if err == nil && answer.GetMessage().GetKind() != string(migration.KindNeverRan) {
					t.Errorf("it was accepted: %+v", answer)
				}
				t.Log(err, answer.GetMessage().GetError(), string(answer.GetMessage().GetProblemsJson()))
			})
		})
	}
}

// badProofs requests tokens in forbidden places, or where a file that is no token would be changed.
func (w *world) badProofs(t *testing.T, peer api.PeerClient) {
	root, err := w.lab.Root("a")
	if err != nil {
		t.Fatal(err)
	}
	const name = ".godwit-proof-00000000000000000000000000000000"
	precious := filepath.Join(root, "tmp/proofs", name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(precious), 0o755),
		os.WriteFile(precious, []byte("precious"), 0o600)); err != nil {
		t.Fatal(err)
	}
	w.unchanged(t, func() {
		bind := func(source string) *api.Volume {
			return &api.Volume{Kind: "bind", Source: source,
				Path: "/x"}
		}
		request := &api.ProveRequest{Proofs: []*api.Proof{
			{}, {Volume: bind("/tmp/proofs"), File: name}, {Volume: bind("/tmp"), File: "proofs/" + name},
			{Volume: bind("/etc"), File: "passwd"},
			{Volume: bind("/tmp/proofs"), File: "../proofs/" + name},
			{Volume: bind("/var/lib/godwit"), File: name},
			{Volume: &api.Volume{Name: "../../../../tmp/proofs", Path: "/x"}, File: name},
			{Volume: bind("/tmp/none"), File: name},
		}}
		reply, err := peer.Prove(t.Context(), request)
		if err != nil || len(reply.Proven) != len(request.Proofs) {
			t.Fatalf("%v, %+v", err, reply)
		}
		for i, one := range reply.Proven {
			if one.Token != "" || one.Reply != "" {
				t.Errorf("%+v is answered: %+v", request.Proofs[i], one)
			}
		}
		if _, err := peer.Prove(t.Context(),
			&api.ProveRequest{Proofs: make([]*api.Proof, 1<<11)}); err == nil {
			t.Error("as many as one likes are looked for")
		}
	})
	if now, err := os.ReadFile(precious); err != nil || string(now) != "precious" {
		t.Errorf("a file that is no token was changed: %q, %v", now, err)
	}
}

// silence opens a session without a message, and one that begins with a wrong message.
func (w *world) silence(t *testing.T, peer api.PeerClient) {
	w.unchanged(t, func() {
		session, err := peer.Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := session.Recv(); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("a silent session ends with %v", err)
		}
		if session, err = peer.Session(t.Context()); err == nil {
			err = session.Send(&api.Envelope{Message: &api.Message{Kind: "running"}})
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := session.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a session that begins without an offer ends with %v", err)
		}
		_, err = peer.Hello(t.Context(), &api.HelloRequest{NodesJson: make([]byte, 32<<20)})
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("32 MiB in one message: %v", err)
		}
	})
}

// tooMany begins more migrations than one node may, and leaves them open.
func (w *world) tooMany(t *testing.T, peer api.PeerClient) {
	w.unchanged(t, func() {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var accepted, refused atomic.Int32
		var all sync.WaitGroup
		for number := range 40 {
			offer, _ := w.offer(t, 100+number)
			all.Go(func() {
				answer, err := open(ctx, peer, offer)
				switch {
				case status.Code(err) == codes.FailedPrecondition &&
					strings.Contains(err.Error(), "under way"):
					refused.Add(1)
				case err == nil && answer.GetMessage().GetKind() == string(migration.KindReserved):
					accepted.Add(1)
				default:
					t.Errorf("offer %d: %v, error %v", number, answer, err)
				}
			})
		}
		all.Wait()
		if accepted.Load() != 32 || refused.Load() != 8 {
			t.Errorf("%d were accepted, %d refused; want 32 and 8", accepted.Load(), refused.Load())
		}
	})
	eventually(t, "the migrations to be given up", func() error {
		if r, _ := w.report(t, "a", fmt.Sprintf("%016x", 100)); r.Result != migration.RolledBack {
			return fmt.Errorf("one is %s", r.Result)
		}
		return nil
	})
}

// othersMigrations interferes in a migration between two other nodes.
func (w *world) othersMigrations(t *testing.T, peer api.PeerClient) {
	w.unchanged(t, func() {
		w.set(t, "a", beforePrepare, "pause")
		id := w.begin(t, "a", "b")
		w.reach(t, "a", beforePrepare)
		for _, kind := range []migration.MessageKind{migration.KindNeverRan, migration.KindRunning,
			migration.KindOverruled} {
			_, err := peer.Tell(t.Context(),
				&api.TellRequest{Migration: id, Message: &api.Message{Kind: string(kind)}})
			if status.Code(err) != codes.PermissionDenied {
				t.Errorf("told %s: %v", kind, err)
			}
		}
		if _, err := peer.Outcome(t.Context(),
			&api.OutcomeRequest{Migration: id, Abort: true}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("asked for the outcome: %v", err)
		}
		if _, err := peer.Durable(t.Context(),
			&api.DurableRequest{Migration: id}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("asked for files: %v", err)
		}
		for _, key := range [][]byte{nil, make([]byte, 32)} {
			reply, err := peer.Spill(t.Context(), &api.SpillRequest{Migration: id, Key: key})
			if status.Code(err) != codes.PermissionDenied {
				t.Errorf("asked for the key of pages, or gave one: %v, %v", reply, err)
			}
		}
		if _, err := peer.Outcome(t.Context(),
			&api.OutcomeRequest{Migration: "../../../x"}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("asked for a path: %v", err)
		}
		address := w.find(t, "a", container).Definition.Network.Address.String()
		if _, err := peer.Release(t.Context(),
			&api.ReleaseRequest{Address: address, Container: w.id}); err == nil {
			t.Error("it may give back the address of a container that runs")
		}
		w.cancel(t, "a", id)
		w.settle(t, id)
		w.unset(t)
	})
}

// badData opens data connections that belong to nothing.
func (w *world) badData(t *testing.T, id *identity.Identity) {
	w.unchanged(t, func() {
		for _, hello := range []stream.Hello{
			{Migration: "0123456789abcdef", Purpose: "migration"},
			{Migration: "../../x", Purpose: "migration"}, {Purpose: "nonsense"},
		} {
			if _, err := stream.Open(t.Context(), w.secured(t, id, "godwit-data/1"), hello,
				stream.Options{}); err == nil {
				t.Errorf("a data connection for %+v was accepted", hello)
			}
		}
		conn := w.secured(t, id, "godwit-data/1")
		_, _ = conn.Write([]byte("GODWIT\n\x00\x00\x63\x00\x02{}")) // another version
		answer := make([]byte, 64)
		n, _ := conn.Read(answer)
		if !strings.HasPrefix(string(answer[:n]), "GODWIT\n") {
			t.Errorf("a peer of another version is told %q", answer[:n])
		}
	})
}
