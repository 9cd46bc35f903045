package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/audit"
)

// TestEveryMethodIsAuditedOrNot: a method that is added has to be decided about.
func TestEveryMethodIsAuditedOrNot(t *testing.T) {
	decided := audited()
	for _, method := range api.Agent_ServiceDesc.Methods {
		if _, ok := decided[method.MethodName]; !ok {
			t.Errorf("%s is in no table", method.MethodName)
		}
		delete(decided, method.MethodName)
	}
	for _, stream := range api.Agent_ServiceDesc.Streams {
		if _, ok := decided[stream.StreamName]; !ok {
			t.Errorf("%s is in no table", stream.StreamName)
		}
		delete(decided, stream.StreamName)
	}
	for method := range decided {
		t.Errorf("%s is no method", method)
	}
}

func TestAuditNamesWhoAndWhatWithoutSecrets(t *testing.T) {
	dir := t.TempDir()
	a := &Agent{auditLog: audit.New(dir), log: slog.New(slog.DiscardHandler)}
	ctx := grpcpeer.NewContext(context.Background(), &grpcpeer.Peer{AuthInfo: localPeer{UID: 1000, GID: 50, PID: 7}})
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
