package controller

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/controller/decide"
	"github.com/godwit/godwit/internal/controller/store"
)

// minIDDigits is how much of an intent's id a user must give.
const minIDDigits = 4

// intent finds the intent that a user means by an id or the beginning of one.
func (c *cluster) intent(reference string) (store.Intent, error) {
	if one, found := c.state.Intents[reference]; found {
		return one, nil
	}
	var alike []store.Intent
	for id, one := range c.state.Intents {
		if len(reference) >= minIDDigits && strings.HasPrefix(id, reference) {
			alike = append(alike, one)
		}
	}
	switch len(alike) {
	case 0:
		return store.Intent{}, status.Errorf(codes.NotFound,
			"migration %.40q is %v; godwit migration ls --all lists them", reference, errUnknown)
	case 1:
		return alike[0], nil
	}
	return store.Intent{}, status.Errorf(codes.InvalidArgument,
		"%d migrations begin with %.40q: give more of the id", len(alike), reference)
}

// CancelIntent ends an intent that has not begun, and asks the source to cancel one that has.
func (s *userService) CancelIntent(ctx context.Context, request *api.CancelIntentRequest) (*api.Intent,
	error) {
	c := s.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	one, err := c.intent(request.Id)
	if err != nil {
		return nil, err
	}
	if one, err = c.cancel(ctx, one, userOf(ctx)); err != nil {
		return nil, err
	}
	c.kick()
	return c.describeIntent(one), nil
}

// cancel cancels an intent. It can be repeated: the source is then asked again.
func (c *cluster) cancel(ctx context.Context, one store.Intent, by string) (store.Intent, error) {
	var containers []store.Container
	switch {
	case one.State == store.Cancelled:
		return one, nil
	case one.State.Ended():
		return one, status.Errorf(codes.FailedPrecondition, "migration %s of %s has ended: %s", one.ID,
			one.Name, one.State)
	case one.State == store.Queued:
		one.State, one.EndedAt, one.CancelledBy = store.Cancelled, c.now().UTC(), by
		one.Error = by + " cancelled it before it began"
		containers = c.hold(one)
	default:
		one.CancelledBy, one.CancelError = by, ""
	}
	if err := c.saveIntents(ctx, []store.Intent{one}, containers); err != nil {
		return one, status.Error(codes.Unavailable, err.Error())
	}
	if c.queue.Cancel(one.ID) {
		job, _ := c.queue.Find(one.ID)
		c.send(job)
	}
	c.log.Info("intent cancelled", "intent", one.ID, "container", one.Name, "state", one.State, "by", by)
	return one, nil
}

// hold keeps the controller from deciding again what a user has cancelled. A user's own move decides nothing.
func (c *cluster) hold(one store.Intent) []store.Container {
	if one.Cause == string(decide.User) {
		return nil
	}
	record := c.container(one.Container)
	record.Held = &store.Held{By: one.CancelledBy, Node: one.From, Since: c.now().UTC()}
	return []store.Container{record}
}

// heldBy returns who keeps a container at a node; empty: nobody. A drain that began later releases it.
func (c *cluster) heldBy(held *store.Held, node string) string {
	if held == nil || held.Node != node {
		return ""
	}
	if drain := c.state.Nodes[node].Drain; drain != nil && drain.Since.After(held.Since) {
		return ""
	}
	return held.By
}

// cancelled takes over that a move that was to be cancelled has not happened.
func (c *cluster) cancelled(one *store.Intent, why string) []store.Container {
	one.State, one.EndedAt = store.Cancelled, c.now().UTC()
	one.Error = cut(fmt.Sprintf("%s cancelled it: %s", one.CancelledBy, why))
	return c.hold(*one)
}
