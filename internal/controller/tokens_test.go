package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/controller/store"
)

// tokens are the tokens that the store has.
func (w *world) tokens(t *testing.T) map[string]store.Token {
	t.Helper()
	records, err := w.kept.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	state, err := store.Decode(records)
	if err != nil {
		t.Fatal(err)
	}
	return state.Tokens
}

// TestTokens: tokens are listed without secrets, and a removed one is useless at once, also for what it
// began.
func TestTokens(t *testing.T) {
	ids := nodes(t, "a", "b")
	w := start(t, store.NewMemory())
	defer w.stop()
	w.join(t, ids[0])
	w.join(t, ids[1])
	a := w.connect(t, ids[0], container("1"))
	w.connect(t, ids[1])
	admin := &adminService{cluster: w.cluster}
	ctx, user := w.user(t)
	spare, _ := w.named(t, "anna")
	other, _ := w.named(t, "ben")
	made, err := user.Move(ctx, &api.MoveRequest{Container: "name-1", Node: "b"})
	if err != nil {
		t.Fatal(err)
	}
	a.command(t)
	watch, err := user.WatchIntent(ctx, &api.WatchIntentRequest{Id: made.Intent.Id})
	if err == nil {
		_, err = watch.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	listed, err := admin.ListTokens(t.Context(), &api.ListTokensRequest{})
	if err != nil || len(listed.Tokens) != 5 || listed.Tokens[0].State != "used" ||
		listed.Tokens[2].State != "valid" || listed.Tokens[2].Name != "anna" {
		t.Fatalf("%v, %v", listed, err)
	}
	for _, one := range listed.Tokens {
		if len(one.Id) != tokenIDDigits || one.CreatedUnixNanoseconds == 0 {
			t.Errorf("token %v", one)
		}
	}
	for _, reference := range []string{"", "carl", listed.Tokens[2].Id[:4]} {
		_, err := admin.RemoveToken(t.Context(), &api.RemoveTokenRequest{Reference: reference})
		if status.Code(err) != codes.NotFound {
			t.Errorf("%q: %v", reference, err)
		}
	}
	removed, err := admin.RemoveToken(t.Context(), &api.RemoveTokenRequest{Reference: listed.Tokens[2].Id})
	if err != nil || len(removed.Tokens) != 1 {
		t.Fatalf("%v, %v", removed, err)
	}
	for err == nil {
		_, err = watch.Recv()
	}
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("the stream that began with the token ends with %v", err)
	}
	if _, err := user.ClusterNodes(ctx, &api.ClusterNodesRequest{}); status.Code(err) !=
		codes.Unauthenticated {
		t.Errorf("a removed token: %v", err)
	}
	if _, err := user.ClusterNodes(spare, &api.ClusterNodesRequest{}); err != nil {
		t.Errorf("another token of the user: %v", err)
	}
	w.token(t, "user", "anna")
	removed, err = admin.RemoveToken(t.Context(), &api.RemoveTokenRequest{Reference: "anna"})
	if err != nil || len(removed.Tokens) != 2 {
		t.Fatalf("%v, %v", removed, err)
	}
	if _, err := user.ClusterNodes(other, &api.ClusterNodesRequest{}); err != nil {
		t.Errorf("another user: %v", err)
	}
	if kept := w.tokens(t); len(kept) != 3 {
		t.Errorf("the store has %v", kept)
	}
}

// TestTokenEndsBetween: a call whose token is removed, or expires, after the headers of the call is not carried
// out, and neither is the rest of a long answer sent.
func TestTokenEndsBetween(t *testing.T) {
	now := time.Now()
	valid := store.Token{Hash: "h", Kind: store.UserToken, Name: "anna", Role: store.Admin,
		Expires: now.Add(time.Hour)}
	config := Config{AuditDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
	c := newCallers(config, defaultBounds(), map[string]store.Token{}, func() time.Time { return now })
	ctx := context.WithValue(t.Context(), userKey{}, user{name: "anna", role: store.Admin, token: "h"})
	for name, end := range map[string]func(){
		"removed": func() { c.tokens.drop(valid) },
		"expired": func() { now = now.Add(2 * time.Hour) },
	} {
		now = time.Now()
		c.tokens.put(valid)
		move := func() (carriedOut bool, err error) {
			_, err = c.unary(ctx, &api.MoveRequest{}, &grpc.UnaryServerInfo{FullMethod: "/x/Move"},
				func(context.Context, any) (any, error) { carriedOut = true; return nil, nil })
			return carriedOut, err
		}
		for range 2 { // the audit log has at least two entries
			if did, err := move(); !did || err != nil {
				t.Fatalf("%s: before that: %v, %v", name, did, err)
			}
		}
		sent := 0
		answer := &grpc.GenericServerStream[api.ClusterAuditRequest, api.ClusterAuditReply]{
			ServerStream: sink{quiet{ctx: ctx}, func() { sent++; end() }}}
		err := (&userService{cluster: &cluster{callers: c}}).ClusterAudit(&api.ClusterAuditRequest{}, answer)
		if sent != 1 || status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: %d entries of the audit log sent, %v", name, sent, err)
		}
		if did, err := move(); did || status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: carried out %v, %v", name, did, err)
		}
	}
}

// sink is a stream that notes what is sent.
type sink struct {
	quiet
	note func()
}

func (s sink) SendMsg(any) error { s.note(); return nil }

// TestUselessTokensGo: the leader removes tokens that are spent or have expired, and no others, after a time
// in which their users hear the reason.
func TestUselessTokensGo(t *testing.T) {
	ids := nodes(t, "a")
	w := start(t, store.NewMemory())
	defer w.stop()
	w.join(t, ids[0])
	w.token(t, "node", "late")
	w.token(t, "user", "anna")
	if _, err := w.cluster.tokens.create(t.Context(), &api.CreateTokenRequest{Kind: "user", Name: "ben",
		TtlSeconds: 60}); err != nil {
		t.Fatal(err)
	}
	names := func() string {
		var all []string
		for _, one := range w.cluster.callers.tokens.all() {
			all = append(all, string(one.Kind)+":"+one.Name)
		}
		return strings.Join(all, " ")
	}
	for _, one := range []struct {
		ahead time.Duration
		want  string
	}{
		{30 * time.Minute, "node: node:late user:anna user:ben"},
		{61 * time.Minute, "node:late user:anna user:ben"},
		{3 * time.Hour, "user:anna user:ben"},
		{29 * 24 * time.Hour, "user:anna user:ben"},
		{31 * 24 * time.Hour, "user:anna"},
	} {
		w.ahead.Store(int64(one.ahead))
		if err := w.cluster.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := names(); got != one.want {
			t.Errorf("after %v there are %q, want %q", one.ahead, got, one.want)
		}
	}
	if kept := w.tokens(t); len(kept) != 1 {
		t.Errorf("the store has %v", kept)
	}
}

// TestTooManyTokens: useless tokens do not keep new ones from being made; useful ones do, with the remedy.
func TestTooManyTokens(t *testing.T) {
	w := start(t, store.NewMemory())
	defer w.stop()
	book, now := w.cluster.callers.tokens, time.Now()
	for i := range maxTokens {
		hash := fmt.Sprintf("%064d", i)
		book.put(store.Token{Hash: hash, Kind: store.UserToken, Name: "x", Created: now})
	}
	_, err := w.cluster.tokens.create(t.Context(), &api.CreateTokenRequest{Kind: "node"})
	if err == nil || !strings.Contains(err.Error(), "remove some with godwit-controller token rm") {
		t.Errorf("a token too many: %v", err)
	}
	for i := range 150 {
		hash := fmt.Sprintf("%064d", i)
		book.put(store.Token{Hash: hash, Kind: store.NodeToken, Used: true, UsedAt: now, Created: now})
	}
	w.token(t, "node", "")
	if got := len(book.all()); got != maxTokens-150+1 {
		t.Errorf("%d tokens are left", got)
	}
	if err := w.cluster.records.term.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.cluster.tokens.remove(t.Context(), "x"); status.Code(err) != codes.Unavailable ||
		!strings.Contains(err.Error(), store.ErrNotLeader.Error()) {
		t.Errorf("removed without a leader: %v", err)
	}
	if got := len(book.all()); got != maxTokens-150+1 {
		t.Errorf("%d tokens are left", got)
	}
	if _, err := w.cluster.tokens.create(t.Context(), &api.CreateTokenRequest{Kind: "node"}); !errors.Is(err,
		store.ErrNotLeader) {
		t.Errorf("made without a leader: %v", err)
	}
}

// TestAmbiguousToken: a user whose name is the id of a token does not lead to a wrong token.
func TestAmbiguousToken(t *testing.T) {
	w := start(t, store.NewMemory())
	defer w.stop()
	w.token(t, "user", "anna")
	id := tokenID(w.cluster.callers.tokens.all()[0])
	secret := w.token(t, "user", id).Secret()
	if _, err := w.cluster.tokens.remove(t.Context(), id); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("%v", err)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+secret)
	if _, err := api.NewControllerClient(w.dial(t, nil)).ClusterNodes(ctx,
		&api.ClusterNodesRequest{}); err != nil {
		t.Error(err)
	}
}
