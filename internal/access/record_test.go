package access

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
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
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
)

// TestEveryMethodIsAuditedOrNot: a new method needs a decision.
func TestEveryMethodIsAuditedOrNot(t *testing.T) {
	for _, one := range []struct {
		service grpc.ServiceDesc
		decided map[string]bool
	}{{api.Agent_ServiceDesc, Audited()}, {api.Peer_ServiceDesc, AuditedOfNodes()}} {
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

// TestAuditOfNodes: the certificate identifies the caller; the log of users has no such entry.
func TestAuditOfNodes(t *testing.T) {
	dir := t.TempDir()
	r := NewRecord(audit.New(dir, audit.Users), audit.New(dir, audit.Nodes), slog.New(slog.DiscardHandler))
	ctx := grpcpeer.NewContext(t.Context(), &grpcpeer.Peer{
		Addr:     &net.TCPAddr{IP: net.IPv4(192, 0, 2, 3), Port: 700},
		AuthInfo: wire.AuthInfo{Peer: identity.Peer{Name: "b", Number: 2}},
	})
	release := &api.ReleaseRequest{Container: "web"}
	r.audit(ctx, "Release", objectOf(release), status.Error(codes.PermissionDenied, "not yours"))
	r.Keep(ctx, audit.Entry{Method: "Session", Object: "0123", Outcome: "cut off", Time: time.Now()})
	r.audit(localContext(t), "Migrate", "web", nil)
	var got []string
	err := r.Read(time.Time{}, func(e audit.Entry) error {
		fields := []string{e.Node, e.Address, e.Method, e.Object, e.Outcome, e.Error}
		got = append(got, strings.Join(fields, "|"))
		return nil
	})
	want := []string{
		"b|192.0.2.3:700|Release|web|PermissionDenied|not yours",
		"b|192.0.2.3:700|Session|0123|cut off|",
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
	return grpcpeer.NewContext(t.Context(), &grpcpeer.Peer{AuthInfo: Peer{UID: 1000, GID: 50, PID: 7}})
}

func TestAuditNamesWhoAndWhatWithoutSecrets(t *testing.T) {
	dir := t.TempDir()
	r := NewRecord(audit.New(dir, audit.Users), nil, slog.New(slog.DiscardHandler))
	ctx := localContext(t)
	run := &api.RunRequest{Name: "web", Env: []string{"PASSWORD=hunter2"}, Args: []string{"hunter2"}}
	exec := &api.ExecInput{Start: &api.ExecStart{Reference: "db", Args: []string{"hunter2"},
		Env: []string{"K=hunter2"}}}
	r.audit(ctx, "Run", objectOf(run), nil)
	r.audit(ctx, "Exec", objectOf(exec), status.Error(codes.NotFound, "no such container"))
	r.audit(ctx, "Migrate", objectOf(&api.MigrateRequest{Container: "web", Node: "b"}), errors.New("busy"))
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

// TestAuditLogThatCannotBeWritten: the call is over by then, and the agent's own log has the error.
func TestAuditLogThatCannotBeWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var told bytes.Buffer
	r := NewRecord(audit.New(dir, audit.Users), nil, slog.New(slog.NewTextHandler(&told, nil)))
	r.audit(localContext(t), "Run", "web", nil)
	if !strings.Contains(told.String(), "audit log") || !strings.Contains(told.String(), "method=Run") {
		t.Errorf("the log says %q", told.String())
	}
}
