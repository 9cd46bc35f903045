package controller

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/audit"
	"github.com/godwit/godwit/internal/controller/store"
)

// TestEveryCallNeedsARole: a new call needs a decision.
func TestEveryCallNeedsARole(t *testing.T) {
	table := roles()
	for _, service := range []grpc.ServiceDesc{api.Controller_ServiceDesc, api.ControllerAdmin_ServiceDesc} {
		var methods []string
		for _, one := range service.Methods {
			methods = append(methods, one.MethodName)
		}
		for _, one := range service.Streams {
			methods = append(methods, one.StreamName)
		}
		for _, one := range methods {
			if table[one] == "" {
				t.Errorf("%s needs no role", one)
			}
			delete(table, one)
		}
	}
	if len(table) > 0 {
		t.Errorf("no such calls: %v", table)
	}
	if (&callers{roles: roles()}).needed("/x/New") != store.Admin {
		t.Error("a call that is not listed does not need the highest role")
	}
}

// entries are those of the audit log, as an admin sees them.
func entries(t *testing.T, w *world) []audit.Entry {
	t.Helper()
	ctx, admin := w.withRole(t, "root", "admin")
	stream, err := admin.ClusterAudit(ctx, &api.ClusterAuditRequest{
		SinceUnixNanoseconds: time.Now().Add(-time.Hour).UnixNano()})
	if err != nil {
		t.Fatal(err)
	}
	var all []audit.Entry
	for {
		reply, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		var entry audit.Entry
		if err := json.Unmarshal(reply.EntryJson, &entry); err != nil {
			t.Fatal(err)
		}
		all = append(all, entry)
	}
}

// TestRoles: each user may do what the role allows, hears which role is missing, and is in the record.
func TestRoles(t *testing.T) {
	ids := nodes(t, "a", "b")
	w := start(t, store.NewMemory())
	defer w.stop()
	w.join(t, ids[0])
	w.connect(t, ids[0], container("1"))
	for role, may := range map[string][]bool{"viewer": {true, false, false}, "": {true, true, false},
		"operator": {true, true, false}, "admin": {true, true, true}} {
		ctx, user := w.withRole(t, "u-"+role, role)
		_, looks := user.ClusterNodes(ctx, &api.ClusterNodesRequest{})
		_, changes := user.SetNode(ctx, &api.SetNodeRequest{Node: "a", State: "cordoned",
			Labels: map[string]string{"zone": "x", "disk": "ssd"}, RemoveLabels: []string{"old"}})
		stream, reads := user.ClusterAudit(ctx, &api.ClusterAuditRequest{})
		for reads == nil {
			_, reads = stream.Recv()
		}
		if errors.Is(reads, io.EOF) {
			reads = nil
		}
		for i, err := range []error{looks, changes, reads} {
			need := []string{"viewer", "operator", "admin"}[i]
			switch {
			case may[i] && err != nil:
				t.Errorf("%q may not do what needs the role %s: %v", role, need, err)
			case !may[i] && (status.Code(err) != codes.PermissionDenied ||
				!strings.Contains(err.Error(), "needs the role "+need+", and the token has the role")):
				t.Errorf("%q does what needs the role %s: %v", role, need, err)
			}
		}
	}
	ctx, anna := w.user(t)
	if _, err := anna.Move(ctx, &api.MoveRequest{Container: "name-1", Node: "b"}); err == nil {
		t.Error("moved to a node that has not joined")
	}
	var got []string
	for _, one := range entries(t, w) {
		if !strings.HasPrefix(one.Address, "127.0.0.1:") || time.Since(one.Time) > time.Hour {
			t.Errorf("entry %+v", one)
		}
		fields := []string{one.User + one.Node, one.Method, one.Object, one.Outcome}
		got = append(got, strings.Join(fields, "|"))
	}
	for _, want := range []string{"a|Join||ok", "u-operator|SetNode|a cordoned disk=ssd zone=x old-|ok",
		"u-viewer|SetNode|a cordoned disk=ssd zone=x old-|PermissionDenied",
		"u-operator|ClusterAudit||PermissionDenied", "u-admin|ClusterAudit||ok",
		"anna|Move|name-1 to b|NotFound"} {
		if !slices.Contains(got, want) {
			t.Errorf("the audit log lacks %s: %q", want, got)
		}
	}
	if slices.ContainsFunc(got, func(one string) bool { return strings.Contains(one, "ClusterNodes") }) {
		t.Errorf("the audit log has calls that change nothing: %q", got)
	}
}

// TestRoot: what root does at the socket is allowed and recorded, and a wrong role is refused.
func TestRoot(t *testing.T) {
	w := start(t, store.NewMemory())
	defer w.stop()
	admin := &adminService{cluster: w.cluster}
	call := func(request *api.CreateTokenRequest) error {
		_, err := w.cluster.callers.asRoot(t.Context(), request,
			&grpc.UnaryServerInfo{FullMethod: "/x/CreateToken"},
			func(ctx context.Context, request any) (any, error) {
				return admin.CreateToken(ctx, request.(*api.CreateTokenRequest))
			})
		return err
	}
	if err := call(&api.CreateTokenRequest{Kind: "user", Name: "anna", Role: "viewer"}); err != nil {
		t.Error(err)
	}
	for want, request := range map[string]*api.CreateTokenRequest{
		"must be viewer, operator or admin": {Kind: "user", Name: "anna", Role: "king"},
		"a node has no role":                {Kind: "node", Role: "viewer"},
	} {
		if err := call(request); status.Code(err) != codes.InvalidArgument ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", request, err)
		}
	}
	var got []string
	if err := w.cluster.callers.done.Read(time.Time{}, func(one audit.Entry) error {
		got = append(got, one.User+"|"+one.Object+"|"+one.Outcome)
		return nil
	}); err != nil || !slices.Contains(got, "root|user anna viewer|ok") ||
		!slices.Contains(got, "root|user anna king|InvalidArgument") {
		t.Errorf("%q, %v", got, err)
	}
}

// TestAuditCannotBeWritten: the call is over by then, and the controller's own log has the error.
func TestAuditCannotBeWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	config := Config{AuditDir: file, Log: slog.New(slog.NewTextHandler(&log, nil))}
	c := newCallers(config, defaultBounds(), nil, time.Now)
	info := &grpc.UnaryServerInfo{FullMethod: "/x/Move"}
	if _, err := c.asRoot(t.Context(), &api.MoveRequest{Container: "web", Node: "b"}, info,
		func(context.Context, any) (any, error) { return nil, nil }); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "method=Move") || !strings.Contains(log.String(), "user=root") {
		t.Errorf("the log says %q", log.String())
	}
}
