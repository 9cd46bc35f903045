package agent

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
	"github.com/godwit/godwit/internal/node/rpc"
	"github.com/godwit/godwit/internal/placement"
)

// StageAhead starts the placement of copies where a container will go, or may go, and returns what is
// expected of them.
func (s *localService) StageAhead(ctx context.Context, request *api.StageAheadRequest) (*api.StagesReply,
	error) {
	if request.Off {
		return &api.StagesReply{}, rpc.Error(s.agent.unplace(ctx, request.Container))
	}
	list, err := s.agent.place(ctx, request)
	if err != nil {
		return nil, rpc.Error(err)
	}
	documents, err := rpc.MarshalEach(list)
	return &api.StagesReply{StagesJson: documents}, rpc.Error(err)
}

// place gives a container a policy.
func (a *Agent) place(ctx context.Context, request *api.StageAheadRequest) ([]migration.Stage, error) {
	container, err := a.idle(ctx, request.Container)
	if err != nil {
		return nil, err
	}
	if container.State != engine.Running {
		return nil, fmt.Errorf("%w: %s is %s; only a running container can be staged", engine.ErrNotRunning,
			container.Definition.Name, container.State)
	}
	now := time.Now()
	p, err := a.policyOf(request, container.Definition, now)
	if err != nil {
		return nil, err
	}
	if g := a.stages.Of(p.Container); g != nil && a.placements.of(p.Container) == nil {
		return nil, fmt.Errorf("%w: %s is staged at %s already: \"godwit stage rm %s %s\" first",
			engine.ErrBusy, container.Definition.Name, g.Target(), container.Definition.Name, g.Target())
	}
	if err := a.checkBudget(ctx, p, container.Definition.Name); err != nil {
		return nil, err
	}
	world := newObserver(a)
	situation, _, err := world.situation(ctx, p, nil) // takes a second, in which it is measured
	if err != nil {
		return nil, err
	}
	if err := a.placements.order(a.moves.broughtBy(p.Container), p); err != nil {
		return nil, err
	}
	return a.describePlacement(p, p.Decide(situation), nil), nil
}

// policyOf is what a user wants; what makes no sense is refused.
func (a *Agent) policyOf(request *api.StageAheadRequest, definition engine.Definition,
	now time.Time) (placement.Policy, error) {
	p := placement.Policy{
		Container: definition.ID, Engine: definition.EngineName, Nearest: int(request.Nearest),
		BudgetBytes:    request.BudgetBytes,
		BandwidthLimit: request.BandwidthLimitBitsPerSecond,
	}
	for _, stop := range request.Path {
		if _, err := a.peers.Find(stop.Node); err != nil {
			return p, err
		}
		p.Path = append(p.Path, placement.Stop{Node: stop.Node,
			Deadline: time.Unix(0, stop.DeadlineUnixNanoseconds)})
	}
	if err := p.Sort(now); err != nil {
		return p, fmt.Errorf("%w: %w", errInvalid, err)
	}
	if len(p.Path) > 0 { // it may come back later
		if err := migration.CheckRoute(a.self.Name, p.Path[0].Node); err != nil {
			return p, fmt.Errorf("%w: %w", errRefused, err)
		}
	}
	if request.KeepSeconds == 0 && p.Nearest > 0 { // until a user ends it
		request.KeepSeconds = migration.MaxKeep.Seconds()
	}
	keep := migration.StageSettings{Keep: seconds(request.KeepSeconds),
		BandwidthLimit: request.BandwidthLimitBitsPerSecond}
	keep, err := keep.Complete()
	if err != nil {
		return p, fmt.Errorf("%w: %w", errInvalid, err)
	}
	p.Until = now.Add(keep.Keep)
	if len(p.Path) > 0 {
		p.Until = p.Path[len(p.Path)-1].Deadline.Add(keep.Keep)
	}
	if err := p.Check(now); err != nil {
		return p, fmt.Errorf("%w: %w", errInvalid, err)
	}
	return p, nil
}

// checkBudget refuses a budget in which there is no room for a single copy.
func (a *Agent) checkBudget(ctx context.Context, p placement.Policy, name string) error {
	if p.BudgetBytes == 0 {
		return nil
	}
	memory, err := a.admission.MemoryOf(ctx, p.Container)
	if err != nil {
		return err
	}
	if memory > p.BudgetBytes {
		return fmt.Errorf("%w: a budget of %d MiB is too small: one copy of %s takes %d MiB", errRefused,
			p.BudgetBytes>>20, name, memory>>20+1)
	}
	return nil
}

// unplace ends the policy of a container, and lets its copies go.
func (a *Agent) unplace(ctx context.Context, reference string) error {
	container, err := a.inspect(ctx, reference)
	if err != nil {
		return err
	}
	f := a.placements.of(container.Definition.ID)
	if f == nil {
		return fmt.Errorf("%w: %s has no placement policy; \"godwit stage ls\" lists what is staged",
			engine.ErrNotFound, container.Definition.Name)
	}
	f.off(ctx)
	return nil
}

// placementStages describes the policies of this node. Copies that are live are in live, by
// container and node.
func (a *Agent) placementStages(live map[layersAt]migration.Stage) (list []migration.Stage) {
	for _, f := range a.placements.list() {
		p, d := f.outlook()
		list = append(list, a.describePlacement(p, d, live)...)
	}
	return list
}

// describePlacement describes what a policy wants, and what there is of it.
func (a *Agent) describePlacement(p placement.Policy, d placement.Decision,
	live map[layersAt]migration.Stage) (list []migration.Stage) {
	name := p.Container
	if container, err := a.engines.Inspect(a.ctx, referenceOf(p)); err == nil {
		name = container.Definition.Name
	}
	described := map[string]bool{}
	add := func(node string, of *migration.Placement) {
		if described[node] {
			return
		}
		described[node] = true
		one, is := live[layersAt{p.Container, node}]
		if !is {
			one = a.describeCopy(p, node, name)
		}
		if c := p.At(node); c != nil {
			one.SentBytes = max(one.SentBytes, c.SentBytes)
			of.Failures = c.Failures
			if one.Error == "" {
				one.Error = c.Error
			}
		}
		one.Placement, one.Until = of, p.Until
		list = append(list, one)
	}
	for _, t := range d.Targets {
		add(t.Node, describeTarget(p, t))
	}
	for _, stop := range p.Path { // if nothing was decided yet
		add(stop.Node, &migration.Placement{Why: migration.PlacementPath, Deadline: stop.Deadline})
	}
	for _, c := range p.Copies {
		add(c.Node, &migration.Placement{Why: migration.PlacementSpare})
	}
	return list
}

func describeTarget(p placement.Policy, t placement.Target) *migration.Placement {
	told := &migration.Placement{
		Why: migration.PlacementPath, Deadline: t.Deadline, Begin: t.Begin, From: t.From,
		Outlook: string(t.Outlook), LateSeconds: t.Late.Seconds(),
		NeedSeconds: t.Need.Seconds, NeedWorstSeconds: t.Need.High, NeedBytes: t.Need.Bytes,
	}
	if p.Nearest > 0 {
		told.Why = migration.PlacementNearest
	}
	return told
}

// describeCopy describes one that is not live.
func (a *Agent) describeCopy(p placement.Policy, node, name string) migration.Stage {
	told := migration.Stage{
		Kind: migration.StagedCopy, Container: name, ContainerID: p.Container, Source: a.self.Name,
		Target: node, State: migration.StageWaiting,
	}
	if c := p.At(node); c != nil && c.Bytes > 0 {
		told.State, told.Fresh, told.MemoryBytes, told.RoundSeconds = migration.StageIdle, c.Fresh, c.Bytes,
			c.Seconds
	}
	return told
}

// Follow takes over where copies of a container shall be that has come here, from the node from
// which it has come.
func (s *peerService) Follow(ctx context.Context, request *api.FollowRequest) (*api.FollowReply, error) {
	from, err := rpc.Caller(ctx)
	if err != nil {
		return nil, err
	}
	p, err := decodePolicy(request, time.Now())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	brought := s.agent.moves.broughtBy(p.Container)
	if brought == nil || brought.tracker.Spec.Source != from || brought.tracker.Spec.ID != request.Migration {
		return nil, status.Errorf(codes.PermissionDenied,
			"node %s was not the source of the last migration of container %.12s to this "+
				"node", from, p.Container)
	}
	container, err := s.agent.engines.Inspect(ctx, p.Container)
	if errors.Is(err, engine.ErrNotFound) {
		return nil, status.Errorf(codes.NotFound, "container %.12s is not here", p.Container)
	}
	if err != nil { // it is asked again
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	p.Engine = container.Definition.EngineName // not what the other node calls it
	return &api.FollowReply{}, rpc.Error(s.agent.placements.receive(brought, p))
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
