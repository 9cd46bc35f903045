package controller

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/audit"
	"github.com/godwit/godwit/internal/controller/store"
)

// refusedCalls is the audit log of calls whose users lack the right: they cannot push out what others did.
const refusedCalls = "audit-refused"

// roles says which role each call needs. A call that is not listed needs the highest. Calls that need more
// than the lowest change something, or show what others did: they are in the audit log.
func roles() map[string]store.Role {
	needed := map[string]store.Role{}
	for role, methods := range map[store.Role]string{
		store.Viewer:   "ClusterNodes ClusterContainers Intents WatchIntent ListTokens",
		store.Operator: "Move SetNode CancelIntent",
		store.Admin:    "ClusterAudit CreateToken RemoveToken",
	} {
		for method := range strings.FieldsSeq(methods) {
			needed[method] = role
		}
	}
	return needed
}

// needed is the role that a call needs.
func (c *callers) needed(method string) store.Role {
	if role, found := c.roles[path.Base(method)]; found {
		return role
	}
	return store.Admin
}

// may refuses a call whose user lacks the role. Calls of nodes have no user.
func (c *callers) may(ctx context.Context, method string) error {
	caller, is := ctx.Value(userKey{}).(user)
	if need := c.needed(method); is && !caller.role.Includes(need) {
		return status.Errorf(codes.PermissionDenied, "%s may not do this: the call needs the role %s, and "+
			"the token has the role %s; godwit-controller token user --role makes another", caller, need,
			caller.role)
	}
	return nil
}

// record keeps a user's call in the audit log. The call is over, so an entry that cannot be written does not
// fail it.
func (c *callers) record(ctx context.Context, method string, request any, failed error) {
	caller, is := ctx.Value(userKey{}).(user)
	if !is || c.needed(method) == store.Viewer || status.Code(failed) == codes.ResourceExhausted {
		return // a call too many did nothing, and there may be thousands
	}
	entry := audit.Entry{Method: path.Base(method), User: caller.name, Object: objectOf(request)}
	if failed != nil {
		entry.Outcome, entry.Error = status.Code(failed).String(), api.Plain(failed)
	}
	log := c.done
	if code := status.Code(failed); code == codes.PermissionDenied || code == codes.Unauthenticated {
		log = c.refused
	}
	c.keep(ctx, log, entry)
}

// keep writes an entry of the audit log.
func (c *callers) keep(ctx context.Context, log *audit.Log, entry audit.Entry) {
	entry.Time = time.Now().UTC()
	if entry.Outcome == "" {
		entry.Outcome = "ok"
	}
	if caller, found := peer.FromContext(ctx); found && caller.Addr != nil {
		entry.Address = caller.Addr.String()
	}
	if err := log.Append(entry); err != nil {
		c.log.Error("cannot write a call to the audit log", "method", entry.Method, "user", entry.User,
			"error", err)
	}
}

// objectOf says what a call is about.
func objectOf(request any) string {
	switch r := request.(type) {
	case *api.MoveRequest:
		return r.Container + " to " + r.Node
	case *api.SetNodeRequest:
		words := []string{r.Node}
		if r.State != "" {
			words = append(words, r.State)
		}
		for _, key := range slices.Sorted(maps.Keys(r.Labels)) {
			words = append(words, key+"="+r.Labels[key])
		}
		for _, key := range r.RemoveLabels {
			words = append(words, key+"-")
		}
		return strings.Join(words, " ")
	case *api.CancelIntentRequest:
		return r.Id
	case *api.CreateTokenRequest:
		return strings.TrimSpace(fmt.Sprintf("%s %s %s", r.Kind, r.Name, r.Role))
	case *api.RemoveTokenRequest:
		return r.Reference
	}
	return ""
}
