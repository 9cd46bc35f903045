package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/placement"
)

// Follow takes over where copies of a container shall be that has come here, from the node from
// which it has come.
func (c *Controller) Follow(ctx context.Context, from string, request *api.FollowRequest) error {
	p, err := decodePolicy(request, time.Now())
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	brought := c.config.Migrations.BroughtBy(p.Container)
	if brought == nil || brought.Source != from || brought.Migration != request.Migration {
		return status.Errorf(codes.PermissionDenied,
			"node %s was not the source of the last migration of container %.12s to this "+
				"node", from, p.Container)
	}
	container, err := c.config.Containers.Inspect(ctx, p.Container)
	if errors.Is(err, engine.ErrNotFound) {
		return status.Errorf(codes.NotFound, "container %.12s is not here", p.Container)
	}
	if err != nil { // it is asked again
		return status.Error(codes.Unavailable, err.Error())
	}
	p.Engine = container.Definition.EngineName // not what the other node calls it
	return c.receive(brought, p)
}

const (
	maxPolicyBytes = 1 << 20
	maxClockShift  = 24 * time.Hour
)

// decodePolicy reads what another node sends, with its times by this node's clock.
func decodePolicy(request *api.FollowRequest, now time.Time) (p placement.Policy, err error) {
	if len(request.PolicyJson) > maxPolicyBytes {
		return p, fmt.Errorf("the policy is too large: %d bytes", len(request.PolicyJson))
	}
	if err := json.Unmarshal(request.PolicyJson, &p); err != nil {
		return p, fmt.Errorf("policy: %w", err)
	}
	if err := migration.CheckContainerID(p.Container); err != nil {
		return p, err
	}
	shift := now.Sub(time.Unix(0, request.NowUnixNanoseconds))
	if shift.Abs() > maxClockShift {
		return p, fmt.Errorf("the clocks of the nodes differ by %s", shift)
	}
	p.Shift(shift)
	return p, p.Check(now)
}
