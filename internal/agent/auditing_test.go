package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/access"
	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/audit"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
)

// TestEveryMethodIsAuditedOrNot: a method that is added has to be decided about.
func TestEveryMethodIsAuditedOrNot(t *testing.T) {
	for _, one := range []struct {
		service grpc.ServiceDesc
		decided map[string]bool
	}{{api.Agent_ServiceDesc, audited()}, {api.Peer_ServiceDesc, auditedOfNodes()}} {
		var methods []string
		for _, method := range one.service.Methods {
			methods = append(methods, method.MethodName)
		}
		for _, stream := range one.service.Streams {
			methods = append(methods, stream.StreamName)
		}
		for _, method := range methods {
			if _, ok := one.decided[method]; !ok {
				t.Errorf("%s is in no table", method)
			}
			delete(one.decided, method)
		}
		for method := range one.decided {
			t.Errorf("%s is no method", method)
		}
	}
}

// TestAuditOfASession: a migration that ends after its session has its result in the log, and one that does
// not end has an outcome, too.
func TestAuditOfASession(t *testing.T) {
	a := &Agent{
		nodesLog: audit.New(t.TempDir(), audit.Nodes), log: slog.New(slog.DiscardHandler), ctx: stopped(t),
	}
	spec := migration.Spec{
		ID: "0123456789abcdef", Side: migration.Target, Mode: migration.Cold, Name: "web",
		Container: strings.Repeat("0", 64), Source: "a", Target: "b",
	}
	machine, err := migration.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	offer := &api.Offer{Migration: spec.ID}
	a.auditSession(t.Context(), offer, newMove(a, nil, machine), nil)
	record := machine.Record()
	record.State, record.Result = migration.Done, migration.Moved
	ended, _, err := migration.Resume(record)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		a.ctx = t.Context()
		m := newMove(a, nil, machine)
		go a.auditSession(t.Context(), offer, m, nil)
		synctest.Wait()
		m.machine = ended
		m.remember()
	})
	var got []string
	err = a.nodesLog.Read(time.Time{}, func(e audit.Entry) error {
		got = append(got, e.Object+": "+e.Outcome)
		return nil
	})
	want := []string{spec.ID + " (web): cut off", spec.ID + " (web): moved"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}

// offers is a session that begins with an offer.
type offers struct {
	grpc.BidiStreamingServer[api.Envelope, api.Envelope]
	ctx   context.Context
	offer *api.Offer
}

func (o offers) Context() context.Context { return o.ctx }

func (o offers) Recv() (*api.Envelope, error) {
	return &api.Envelope{Offer: o.offer, Message: &api.Message{}}, nil
}

// TestAuditBeforeTheEnd: the end of an agent waits for what sessions have to log.
func TestAuditBeforeTheEnd(t *testing.T) {
	a := newTestAgent(t)
	a.nodesLog = audit.New(t.TempDir(), audit.Nodes)
	ctx := grpcpeer.NewContext(t.Context(), &grpcpeer.Peer{
		Addr: &net.TCPAddr{}, AuthInfo: wire.AuthInfo{Peer: identity.Peer{Name: "a", Number: 1}},
	})
	refused := offers{ctx: ctx, offer: &api.Offer{Migration: testMigration}}
	if err := (&peerService{agent: a}).Session(refused); err == nil {
		t.Error("an offer without a protocol is accepted")
	}
	a.entries.Wait()
	entries := 0
	err := a.nodesLog.Read(time.Time{}, func(audit.Entry) error {
		entries++
		return nil
	})
	if err != nil || entries != 1 {
		t.Errorf("%d entries are in the log: %v", entries, err)
	}
}

// TestAuditOfNodes: who has called is what the certificate says; the log of users has nothing of it.
func TestAuditOfNodes(t *testing.T) {
	dir := t.TempDir()
	a := &Agent{
		auditLog: audit.New(dir, audit.Users), nodesLog: audit.New(dir, audit.Nodes),
		log: slog.New(slog.DiscardHandler),
	}
	ctx := grpcpeer.NewContext(t.Context(), &grpcpeer.Peer{
		Addr:     &net.TCPAddr{IP: net.IPv4(192, 0, 2, 3), Port: 700},
		AuthInfo: wire.AuthInfo{Peer: identity.Peer{Name: "b", Number: 2}},
	})
	release := &api.ReleaseRequest{Container: "web"}
	a.audit(ctx, "Release", objectOf(release), status.Error(codes.PermissionDenied, "not yours"))
	offer := &api.Offer{Migration: "0123"}
	a.auditSession(ctx, offer, nil, status.Error(codes.InvalidArgument, "no such mode"))
	a.audit(localContext(t), "Migrate", "web", nil)
	var got []string
	err := audit.ReadBoth(a.auditLog, a.nodesLog, time.Time{}, func(e audit.Entry) error {
		fields := []string{e.Node, e.Address, e.Method, e.Object, e.Outcome, e.Error}
		got = append(got, strings.Join(fields, "|"))
		return nil
	})
	want := []string{
		"b|192.0.2.3:700|Release|web|PermissionDenied|not yours",
		"b|192.0.2.3:700|Session|0123|InvalidArgument|no such mode",
		"||Migrate|web|ok|",
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	data, err := os.ReadFile(filepath.Join(dir, "audit.log"))
	if err != nil || strings.Contains(string(data), "192.0.2.3") {
		t.Errorf("the log of users: %s, %v", data, err)
	}
}

func localContext(t *testing.T) context.Context {
	t.Helper()
	return grpcpeer.NewContext(t.Context(), &grpcpeer.Peer{AuthInfo: access.Peer{UID: 1000, GID: 50, PID: 7}})
}

func TestAuditNamesWhoAndWhatWithoutSecrets(t *testing.T) {
	dir := t.TempDir()
	a := &Agent{auditLog: audit.New(dir, audit.Users), log: slog.New(slog.DiscardHandler)}
	ctx := localContext(t)
	run := &api.RunRequest{Name: "web", Env: []string{"PASSWORD=hunter2"}, Args: []string{"hunter2"}}
	exec := &api.ExecInput{Start: &api.ExecStart{Reference: "db", Args: []string{"hunter2"}, Env: []string{"K=hunter2"}}}
	a.audit(ctx, "Run", objectOf(run), nil)
	a.audit(ctx, "Exec", objectOf(exec), status.Error(codes.NotFound, "no such container"))
	a.audit(ctx, "Migrate", objectOf(&api.MigrateRequest{Container: "web", Node: "b"}), errors.New("busy"))
	data, err := os.ReadFile(filepath.Join(dir, "audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	if strings.Contains(text, "hunter2") {
		t.Errorf("a secret is in the log: %s", text)
	}
	for _, want := range []string{
		`"uid":1000,"gid":50,"pid":7,"method":"Run","object":"web","outcome":"ok"`,
		`"method":"Exec","object":"db","outcome":"NotFound","error":"no such container"`,
		`"method":"Migrate","object":"web","outcome":"Unknown","error":"busy"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the log lacks %s: %s", want, text)
		}
	}
}

func stopped(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
