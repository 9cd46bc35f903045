package access

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

// Right is what a user of the socket may do. Each right includes the lower ones.
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

// rights maps each method of the local service to the right that its caller needs. A method that is not
// listed needs the highest right.
func rights() map[string]Right {
	needed := map[string]Right{}
	for right, methods := range map[Right]string{
		RightLook: "Version ListImages Wait List Top Volumes InspectVolume Nodes RolloverStatus Policy " +
			"Plan Watch Migrations Stages",
		RightMove: "Migrate Set Switch Cancel Resolve Thaw Stage StageAhead Unstage",
		RightRun:  "LoadImage PullImage RemoveImage Run Start Stop Remove Logs Exec Inspect RemoveVolume",
	} {
		for method := range strings.FieldsSeq(methods) {
			needed[method] = right
		}
	}
	return needed
}

// neededFor returns the right that a call needs. --force overrides Godwit's promises, so it needs the
// highest.
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

// Groups names the group whose members have each right; an empty name gives the right to root only.
// If all names are empty, the group of the socket (Config.Group) has all rights.
type Groups struct{ Look, Move, Run, Manage string }

// Rights maps group ids to rights. If it is nil, any process that can open the socket has all rights.
type Rights map[uint32]Right

// Resolve looks the groups up. all is the group of the socket, which has all rights, or "".
func (g Groups) Resolve(all string) (Rights, error) {
	if g == (Groups{}) {
		return nil, nil
	}
	resolved := Rights{}
	for _, one := range []struct {
		name  string
		right Right
	}{{g.Look, RightLook}, {g.Move, RightMove}, {g.Run, RightRun}, {g.Manage, RightManage},
		{all, RightManage}} {
		if one.name == "" {
			continue
		}
		group, err := user.LookupGroup(one.name)
		if err != nil {
			return nil, fmt.Errorf("group with the right to %s: %w; create it with \"groupadd --system %s\"",
				one.right, err, one.name)
		}
		gid, err := strconv.ParseUint(group.Gid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("group %s: %w", one.name, err)
		}
		resolved[uint32(gid)] = max(resolved[uint32(gid)], one.right)
	}
	return resolved, nil
}

// of returns the highest right that the caller's groups give.
func (g Rights) of(caller Peer) Right {
	if g == nil || caller.UID == 0 {
		return RightManage
	}
	best := RightNone
	for _, gid := range append(slices.Clone(caller.Groups), caller.GID) {
		best = max(best, g[gid])
	}
	return best
}

// MayRun reports whether the caller may run containers, and so may see their environment and commands.
func (g Rights) MayRun(ctx context.Context) bool {
	if g == nil {
		return true
	}
	caller, ok := grpcpeer.FromContext(ctx)
	if !ok {
		return false
	}
	local, ok := caller.AuthInfo.(Peer)
	return ok && g.of(local) >= RightRun
}

// authorize refuses a call if its caller lacks the right that it needs.
func (g Rights) authorize(ctx context.Context, table map[string]Right, fullMethod string, request any) error {
	caller, ok := grpcpeer.FromContext(ctx)
	if !ok {
		return status.Error(codes.Unauthenticated, "the caller of the socket cannot be identified")
	}
	local, ok := caller.AuthInfo.(Peer)
	if !ok {
		return status.Error(codes.Unauthenticated, "the caller of the socket cannot be identified")
	}
	method := path.Base(fullMethod)
	if need, has := neededFor(table, method, request), g.of(local); has < need {
		return status.Errorf(codes.PermissionDenied, "user %d may not do this: the call needs the right "+
			"to %s, and the groups of the user give: %s; see godwit agent --%s-group",
			local.UID, need, has, need)
	}
	return nil
}

// Authorizing returns the options with which the local server checks rights.
func (g Rights) Authorizing() []grpc.ServerOption {
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
