package access

import (
	"context"
	"os/user"
	"testing"

	"google.golang.org/grpc/codes"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
)

// TestEveryMethodNeedsARight: a new method needs a decision, here and in rights.
func TestEveryMethodNeedsARight(t *testing.T) {
	table := rights()
	manage := map[string]bool{
		"Token": true, "RemoveNode": true, "PromoteNode": true, "DemoteNode": true,
		"Rollover": true, "Audit": true,
	}
	var methods []string
	for _, method := range api.Agent_ServiceDesc.Methods {
		methods = append(methods, method.MethodName)
	}
	for _, stream := range api.Agent_ServiceDesc.Streams {
		methods = append(methods, stream.StreamName)
	}
	for _, method := range methods {
		_, listed := table[method]
		if listed == manage[method] {
			t.Errorf("%s: listed %t, for managers only %t", method, listed, manage[method])
		}
		delete(table, method)
	}
	for method := range table {
		t.Errorf("%s is no method", method)
	}
}

func TestRights(t *testing.T) {
	groups := Rights{10: RightLook, 20: RightMove, 30: RightRun, 40: RightManage}
	table := rights()
	for _, one := range []struct {
		caller  Peer
		method  string
		request any
		allowed bool
	}{
		{Peer{UID: 0, GID: 0}, "Token", nil, true},
		{Peer{UID: 1, GID: 1}, "List", nil, false},
		{Peer{UID: 1, GID: 10}, "List", nil, true},
		{Peer{UID: 1, GID: 1, Groups: []uint32{5, 10}}, "List", nil, true},
		{Peer{UID: 1, GID: 10}, "Migrate", nil, false},
		{Peer{UID: 1, GID: 1, Groups: []uint32{10, 20}}, "Migrate", nil, true},
		{Peer{UID: 1, GID: 20}, "Exec", nil, false},
		{Peer{UID: 1, GID: 30}, "Exec", nil, true},
		{Peer{UID: 1, GID: 20}, "Resolve", &api.ResolveRequest{}, true},
		{Peer{UID: 1, GID: 30}, "Resolve", &api.ResolveRequest{Force: true}, false},
		{Peer{UID: 1, GID: 30}, "Thaw", &api.ThawRequest{Force: true}, false},
		{Peer{UID: 1, GID: 40}, "Thaw", &api.ThawRequest{Force: true}, true},
		{Peer{UID: 1, GID: 30}, "Token", nil, false},
		{Peer{UID: 1, GID: 30}, "MethodOfTomorrow", nil, false},
	} {
		ctx := grpcpeer.NewContext(context.Background(), &grpcpeer.Peer{AuthInfo: one.caller})
		err := groups.authorize(ctx, table, "/godwit.Agent/"+one.method, one.request)
		if one.allowed != (err == nil) || err != nil && status.Code(err) != codes.PermissionDenied {
			t.Errorf("%+v %s: %v", one.caller, one.method, err)
		}
	}
	for gid, may := range map[uint32]bool{10: false, 20: false, 30: true, 40: true} {
		ctx := grpcpeer.NewContext(context.Background(), &grpcpeer.Peer{AuthInfo: Peer{UID: 1, GID: gid}})
		if groups.MayRun(ctx) != may || !Rights(nil).MayRun(ctx) {
			t.Errorf("group %d: may see secrets: %t", gid, groups.MayRun(ctx))
		}
	}
	if err := groups.authorize(t.Context(), table, "/godwit.Agent/List",
		nil); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a call of nobody: %v", err)
	}
}

func TestRightGroups(t *testing.T) {
	if got, err := (Groups{}).Resolve("whatever"); got != nil || err != nil {
		t.Errorf("without groups for rights: %v, %v", got, err)
	}
	if _, err := (Groups{Look: "no-such-group-here"}).Resolve(""); err == nil {
		t.Error("a group that is not there is no error")
	}
	group, err := user.LookupGroupId("0")
	if err != nil {
		t.Fatal(err)
	}
	got, err := Groups{Look: group.Name, Run: group.Name}.Resolve("")
	if err != nil || got[0] != RightRun {
		t.Errorf("%v, %v: want the highest right that a group is given", got, err)
	}
}
