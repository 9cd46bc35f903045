package agent

import (
	"context"
	"fmt"
	"os/user"
	"path"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
)

// Right is what a user of the socket may do. Each includes those before it.
type Right int

// The rights.
const (
	RightNone   Right = iota
	RightLook         // see containers, migrations, nodes
	RightMove         // move containers between nodes, and what belongs to that
	RightRun          // run, stop, remove and enter containers, which makes root of the node
	RightManage       // admit and remove nodes, decide without the other node's word, read the audit log
)

func (r Right) String() string {
	return [...]string{"none", "look", "move", "run", "manage"}[r]
}

// rights tells for each method of the local service which right a caller needs. A method that is not
// listed needs the highest.
func rights() map[string]Right {
	needed := map[string]Right{}
	for right, methods := range map[Right]string{
		RightLook: "Version ListImages Wait List Inspect Top Volumes InspectVolume Nodes Plan Watch Migrations Stages",
		RightMove: "Migrate Set Switch Cancel Resolve Thaw Stage StageAhead Unstage",
		RightRun:  "LoadImage PullImage RemoveImage Run Stop Remove Logs Exec RemoveVolume",
	} {
		for method := range strings.FieldsSeq(methods) {
			needed[method] = right
		}
	}
	return needed
}

// neededFor is the right that a call needs: --force is a decision against what Godwit promises.
func neededFor(table map[string]Right, method string, request any) Right {
	switch r := request.(type) {
	case *api.ResolveRequest:
		if r.Force {
			return RightManage
		}
	case *api.ThawRequest:
		if r.Force {
			return RightManage
		}
	}
	if right, ok := table[method]; ok {
		return right
	}
	return RightManage
}

// RightGroups are the groups whose members have rights, by name; empty: nobody but root. With none of
// them the socket's own group (Config.Group) has all rights.
type RightGroups struct{ Look, Move, Run, Manage string }

// groupRights are the rights of groups, by number; nil: whoever can open the socket has all.
type groupRights map[uint32]Right

func (g RightGroups) resolve(all string) (groupRights, error) {
	if g == (RightGroups{}) {
		return nil, nil
	}
	resolved := groupRights{}
	for _, one := range []struct {
		name  string
		right Right
	}{{g.Look, RightLook}, {g.Move, RightMove}, {g.Run, RightRun}, {g.Manage, RightManage}, {all, RightManage}} {
		if one.name == "" {
			continue
		}
		group, err := user.LookupGroup(one.name)
		if err != nil {
			return nil, fmt.Errorf("group with the right to %s: %w; make it with \"groupadd --system %s\"", one.right, err, one.name)
		}
		gid, err := strconv.ParseUint(group.Gid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("group %s: %w", one.name, err)
		}
		resolved[uint32(gid)] = max(resolved[uint32(gid)], one.right)
	}
	return resolved, nil
}

// of is the highest right of a caller.
func (g groupRights) of(caller localPeer) Right {
	if g == nil || caller.UID == 0 {
		return RightManage
	}
	best := RightNone
	for _, gid := range append(slices.Clone(caller.Groups), caller.GID) {
		best = max(best, g[gid])
	}
	return best
}

// authorize refuses a call for which its caller has not the right.
func (g groupRights) authorize(ctx context.Context, table map[string]Right, fullMethod string, request any) error {
	caller, ok := grpcpeer.FromContext(ctx)
	if !ok {
		return status.Error(codes.Unauthenticated, "who calls is not known")
	}
	local, ok := caller.AuthInfo.(localPeer)
	if !ok {
		return status.Error(codes.Unauthenticated, "who calls is not known")
	}
	method := path.Base(fullMethod)
	if need, has := neededFor(table, method, request), g.of(local); has < need {
		return status.Errorf(codes.PermissionDenied, "user %d may not do this: it needs the right to %s, and the user's groups give: %s; see godwit agent --%s-group",
			local.UID, need, has, need)
	}
	return nil
}

// authorizing are the options of the local server by which rights are checked.
func (g groupRights) authorizing() []grpc.ServerOption {
	if g == nil {
		return nil
	}
	table := rights()
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo,
			handle grpc.UnaryHandler) (any, error) {
			if err := g.authorize(ctx, table, info.FullMethod, request); err != nil {
				return nil, err
			}
			return handle(ctx, request)
		}),
		grpc.ChainStreamInterceptor(func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
			handle grpc.StreamHandler) error {
			if err := g.authorize(stream.Context(), table, info.FullMethod, nil); err != nil {
				return err
			}
			return handle(server, stream)
		}),
	}
}
