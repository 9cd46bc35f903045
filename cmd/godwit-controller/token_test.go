package main

import (
	"context"
	"encoding/json"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/controller"
)

// admin answers as the controller that leads.
type admin struct {
	api.UnimplementedControllerAdminServer
	asked []*api.CreateTokenRequest
}

func (a *admin) CreateToken(_ context.Context, request *api.CreateTokenRequest) (*api.CreateTokenReply,
	error) {
	a.asked = append(a.asked, request)
	return &api.CreateTokenReply{Token: "gwc1.x.y"}, nil
}

func records() []*api.TokenRecord {
	return []*api.TokenRecord{
		{Id: "0123456789ab", Kind: "node", State: "used", CreatedUnixNanoseconds: time.Now().UnixNano()},
		{Id: "ba9876543210", Kind: "user", Name: "anna", Role: "viewer", State: "valid",
			ExpiresUnixNanoseconds: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC).UnixNano()},
	}
}

func (a *admin) ListTokens(context.Context, *api.ListTokensRequest) (*api.ListTokensReply, error) {
	return &api.ListTokensReply{Tokens: records()}, nil
}

func (a *admin) RemoveToken(_ context.Context, request *api.RemoveTokenRequest) (*api.RemoveTokenReply,
	error) {
	if request.Reference != "anna" {
		return nil, status.Error(codes.NotFound, "no token has this id")
	}
	return &api.RemoveTokenReply{Tokens: records()[1:]}, nil
}

// execute runs a command line against the controller of a directory.
func execute(t *testing.T, directory, line string) (string, error) {
	t.Helper()
	root := newRootCommand()
	root.SetArgs(append(strings.Fields(line), "--run", directory))
	var out strings.Builder
	root.SetOut(&out)
	root.SetErr(&out)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

func TestTokenCommands(t *testing.T) {
	directory := t.TempDir()
	listener, err := net.Listen("unix", controller.SocketPath(directory))
	if err != nil {
		t.Fatal(err)
	}
	server, fake := grpc.NewServer(), &admin{}
	api.RegisterControllerAdminServer(server, fake)
	go func() { _ = server.Serve(listener) }() // until it is stopped
	t.Cleanup(server.Stop)
	for line, want := range map[string]string{
		"token ls":                       "0123456789ab  any node   -       used",
		"token rm anna":                  "Token ba9876543210 of user anna removed.",
		"token user ben --role admin":    "gwc1.x.y",
		"token node --node a --ttl 1h":   "gwc1.x.y",
		"token user carl --ttl 24h":      "gwc1.x.y",
		"token rm anna --json":           `"id": "ba9876543210"`,
		"token user --help":              "(default \"operator\")",
		"token ls --json":                `"name": "anna"`,
		"token rm --help":                "all\ntokens of a user",
		"token node --help":              "one node can join, once",
		"token --help":                   "Available Commands",
		"token user dora --role viewer ": "gwc1.x.y",
	} {
		if out, err := execute(t, directory, line); err != nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v, output %q, want %q", line, err, out, want)
		}
	}
	roles := map[string]string{}
	for _, one := range fake.asked {
		roles[one.Name] = one.Kind + " " + one.Role
	}
	if len(roles) != 4 || roles["ben"] != "user admin" || roles["carl"] != "user operator" ||
		roles["a"] != "node " {
		t.Errorf("asked for %v", roles)
	}
	out, err := execute(t, directory, "token ls --json")
	var read []map[string]any
	if err == nil {
		err = json.Unmarshal([]byte(out), &read)
	}
	if err != nil || len(read) != 2 || strings.Contains(out, "hash") {
		t.Errorf("%v, %v", read, err)
	}
	if _, err := execute(t, directory, "token rm ben"); status.Code(err) != codes.NotFound {
		t.Errorf("a token that is not there: %v", err)
	}
	if _, err := execute(t, t.TempDir(), "token ls"); err == nil ||
		!strings.Contains(err.Error(), "the controller that leads does not answer at") {
		t.Errorf("without a controller: %v", err)
	}
}
