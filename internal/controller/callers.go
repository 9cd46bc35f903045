package controller

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/audit"
	"github.com/godwit/godwit/internal/controller/intake"
	"github.com/godwit/godwit/internal/controller/store"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/wire/pinned"
)

// Bounds of what callers may take.
const (
	maxUserConnections = 32
	maxNodeConnections = 4 // one, and those that the network has forgotten to end
	maxUserCalls       = 32
	bearer             = "Bearer "
)

// bounds are the rest of them, which tests make smaller.
type bounds struct {
	connections intake.Limits
	users       intake.Rate // calls
	nodes       intake.Rate // streams that a node opens
	messages    intake.Rate // in a node's stream
	node        said
}

func defaultBounds() bounds {
	return bounds{
		connections: intake.Limits{Strangers: 1024, StrangersPerHost: 128, Patience: 30 * time.Second,
			Refusals: 4},
		users:    intake.Rate{PerSecond: 50, Burst: 100},
		nodes:    intake.Rate{PerSecond: 1, Burst: 20},
		messages: intake.Rate{PerSecond: 20, Burst: 1000}, // after a reconnect, each command is answered
		node:     said{containers: 20_000, links: 10_000, bytes: 16 << 20},
	}
}

// callers is who may call, and how much.
type callers struct {
	tokens      *tokenBook
	connections *intake.Connections
	users       *intake.Rates
	nodes       *intake.Rates
	calls       *intake.Calls
	roles       map[string]store.Role // that calls need
	done        *audit.Log            // calls of users that had the right
	refused     *audit.Log            // those of users that had not
	log         *slog.Logger
	now         func() time.Time
}

func newCallers(config Config, b bounds, tokens map[string]store.Token, now func() time.Time) *callers {
	return &callers{
		log:         config.Log,
		now:         now,
		tokens:      &tokenBook{byHash: tokens},
		connections: intake.NewConnections(b.connections, config.Log),
		users:       intake.NewRates(b.users, time.Now),
		nodes:       intake.NewRates(b.nodes, time.Now),
		calls:       intake.NewCalls(maxUserCalls),
		roles:       roles(),
		done:        audit.New(config.AuditDir, audit.Users),
		refused:     audit.New(config.AuditDir, refusedCalls),
	}
}

// tokenBook finds tokens. It has a lock of its own: a token is looked up before a call is accepted, and must
// not wait for a change to become durable.
type tokenBook struct {
	mu     sync.RWMutex
	byHash map[string]store.Token
}

func (b *tokenBook) find(hash string) (store.Token, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	token, found := b.byHash[hash]
	return token, found
}

func (b *tokenBook) put(token store.Token) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.byHash[token.Hash] = token
}

func (b *tokenBook) drop(token store.Token) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.byHash, token.Hash)
}

// all returns the tokens, the oldest first.
func (b *tokenBook) all() []store.Token {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return slices.SortedFunc(maps.Values(b.byHash), func(a, b store.Token) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Hash, b.Hash))
	})
}

// userKey is the key of a call's user in its context.
type userKey struct{}

// user makes a call.
type user struct {
	name  string
	role  store.Role
	token string // its hash; empty: root of the controller's machine, at the socket
}

func (u user) String() string {
	if u.token == "" {
		return "root of this machine"
	}
	return "user " + u.name
}

// userOf is the name of the user that makes a call.
func userOf(ctx context.Context) string {
	caller, _ := ctx.Value(userKey{}).(user)
	return caller.name
}

// admit decides about each call before gRPC reads its message. What it returns is the call's context.
func (c *callers) admit(ctx context.Context, info *tap.Info) (admitted context.Context, err error) {
	err = guard.Do(func() (err error) {
		admitted, err = c.identify(ctx, info)
		return err
	})
	if err != nil {
		return ctx, c.plain(info.FullMethodName, err)
	}
	return admitted, nil
}

// identify finds the user of a call to the service Controller. Agents show certificates, which the service
// Uplink checks: until then, their calls count as refused ones.
func (c *callers) identify(ctx context.Context, info *tap.Info) (context.Context, error) {
	shown, found := intake.From(ctx)
	if !found {
		return ctx, status.Error(codes.Unauthenticated, "the caller's connection is not known")
	}
	if !strings.HasPrefix(info.FullMethodName, "/"+api.Controller_ServiceDesc.ServiceName+"/") {
		return ctx, shown.Connection.Refused()
	}
	caller, err := c.user(info.Header)
	if err != nil {
		if more := shown.Connection.Refused(); more != nil {
			return ctx, more
		}
		return ctx, err
	}
	if err := shown.Connection.Known(caller.String(), maxUserConnections); err != nil {
		return ctx, err
	}
	return context.WithValue(ctx, userKey{}, caller), c.users.Allow(caller.String())
}

// user finds the user whose token a call has.
func (c *callers) user(header metadata.MD) (user, error) {
	given := header.Get("authorization")
	if len(given) != 1 || !strings.HasPrefix(given[0], bearer) {
		return user{}, status.Error(codes.Unauthenticated, "no token: give one with --controller-token")
	}
	return c.userWith(pinned.Hash(strings.TrimPrefix(given[0], bearer)))
}

// userWith finds the user whose token has a hash.
func (c *callers) userWith(hash string) (user, error) {
	token, found := c.tokens.find(hash)
	switch {
	case !found:
		return user{}, status.Error(codes.Unauthenticated, "the controller does not know this token; make "+
			"one with godwit-controller token user")
	case token.Kind != store.UserToken:
		return user{}, status.Error(codes.PermissionDenied, "this token is for a node; make one with "+
			"godwit-controller token user")
	case token.Expired(c.now()):
		return user{}, status.Errorf(codes.Unauthenticated, "the token expired at %s; make another with "+
			"godwit-controller token user", token.Expires.Format(time.RFC3339))
	}
	role, err := store.ParseRole(string(token.Role))
	if err != nil {
		return user{}, status.Error(codes.PermissionDenied, "the token has a "+err.Error())
	}
	return user{name: token.Name, role: role, token: token.Hash}, nil
}

// stillMay returns an error if the token with which a call began has been removed, or has expired.
func (c *callers) stillMay(ctx context.Context) error {
	caller, is := ctx.Value(userKey{}).(user)
	if !is || caller.token == "" {
		return nil
	}
	_, err := c.userWith(caller.token)
	return err
}

// knownNode notes which node has a connection, and bounds how often it opens a stream.
func (c *callers) knownNode(ctx context.Context, name string) error {
	shown, found := intake.From(ctx)
	if !found {
		return status.Error(codes.Unauthenticated, "the caller's connection is not known")
	}
	if err := shown.Connection.Known("node "+name, maxNodeConnections); err != nil {
		return err
	}
	return c.nodes.Allow("node " + name)
}

// unary carries out a call: the user's calls that are under way are bounded, and a panic is the call's error.
func (c *callers) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (reply any, err error) {
	err = guard.Do(func() error {
		end, err := c.enter(ctx, info.FullMethod)
		if err != nil {
			return err
		}
		defer end()
		reply, err = handler(ctx, request)
		return err
	})
	err = c.plain(info.FullMethod, err)
	c.record(ctx, info.FullMethod, request, err)
	return reply, err
}

// asRoot carries out a call of the socket, which only root can open.
func (c *callers) asRoot(ctx context.Context, request any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (any, error) {
	return c.unary(context.WithValue(ctx, userKey{}, user{name: "root", role: store.Admin}), request, info,
		handler)
}

func (c *callers) stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler) error {
	err := guard.Do(func() error {
		end, err := c.enter(stream.Context(), info.FullMethod)
		if err != nil {
			return err
		}
		defer end()
		return handler(server, stream)
	})
	err = c.plain(info.FullMethod, err)
	c.record(stream.Context(), info.FullMethod, nil, err)
	return err
}

// enter checks the right of a call's user, and counts the call until end is called. It checks the token
// again, which may have ended between the headers and the message of the call. Calls of nodes have no user.
func (c *callers) enter(ctx context.Context, method string) (end func(), err error) {
	caller, is := ctx.Value(userKey{}).(user)
	if !is {
		return func() {}, nil
	}
	if err := cmp.Or(c.stillMay(ctx), c.may(ctx, method)); err != nil {
		return nil, err
	}
	return c.calls.Begin(caller.String())
}

// plain is the answer for an error. A panic is logged, and the answer does not show what was in memory.
func (c *callers) plain(method string, err error) error {
	if !errors.As(err, new(*guard.Panic)) {
		return err
	}
	guard.LogPanic(c.log.With("method", method), err)
	return status.Error(codes.Internal, "the controller failed in this call, which is a bug of godwit; its "+
		"log has the reason")
}
