package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/audit"
	"github.com/godwit/godwit/internal/controller/decide"
	"github.com/godwit/godwit/internal/controller/store"
	"github.com/godwit/godwit/internal/migration"
)

// Bounds of a node's labels.
const (
	maxNodeLabels     = 64
	maxNodeLabelBytes = 128
)

// userService serves users.
type userService struct {
	api.UnimplementedControllerServer
	cluster *cluster
}

// ClusterNodes lists the nodes.
func (s *userService) ClusterNodes(context.Context, *api.ClusterNodesRequest) (*api.ClusterNodesReply,
	error) {
	c := s.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	reply := &api.ClusterNodesReply{}
	for _, name := range slices.Sorted(maps.Keys(c.state.Nodes)) {
		reply.Nodes = append(reply.Nodes, c.describeNode(name))
	}
	return reply, nil
}

func (c *cluster) describeNode(name string) *api.ClusterNode {
	wanted := c.state.Nodes[name]
	node := &api.ClusterNode{
		Name: name, State: string(wanted.State), Labels: maps.Clone(wanted.Labels),
		Obstacles: c.advice.obstacles[name],
	}
	if why := c.refused[name]; why != "" {
		node.Obstacles = append(slices.Clone(node.Obstacles),
			"the controller refuses what the node tells: "+why)
	}
	if d := wanted.Drain; d != nil {
		node.DrainedBy, node.BringBack = d.By, d.BringBack
		if !d.Deadline.IsZero() {
			node.DeadlineUnixNanoseconds = d.Deadline.UnixNano()
		}
	}
	if live := c.live[name]; live != nil {
		node.Address, node.Version, node.FreeBytes = live.address, live.version, live.free
		node.Connected, node.ChangedUnixNanoseconds = live.session != nil, live.since.UnixNano()
		for _, one := range live.containers {
			if one.Moving || !atRest(one.State) {
				node.Containers++
			}
		}
	}
	for _, job := range c.queue.All() {
		if live := c.live[name]; job.From == name && (live == nil || live.containers[job.Container] == nil) {
			node.Containers++ // its move has not ended: the node may have memory that is needed
		}
	}
	return node
}

// atRest reports whether a container in this state needs nothing of its node but the disk.
func atRest(state string) bool { return state == "exited" || state == "created" || state == "damaged" }

// ClusterContainers lists the containers of all nodes, as each node last said.
func (s *userService) ClusterContainers(context.Context, *api.ClusterContainersRequest) (
	*api.ClusterContainersReply, error) {
	c := s.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	to := map[string]string{}
	for _, job := range c.queue.All() {
		to[job.Container] = job.To
	}
	reply := &api.ClusterContainersReply{}
	for _, name := range slices.Sorted(maps.Keys(c.live)) {
		live := c.live[name]
		all := slices.SortedFunc(maps.Values(live.containers), func(a, b *api.NodeContainer) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Id, b.Id))
		})
		for _, one := range all {
			reply.Containers = append(reply.Containers, &api.ClusterContainer{
				Node: name, Connected: live.session != nil, Container: one, MovingTo: to[one.Id],
			})
		}
	}
	return reply, nil
}

// Move makes an intent.
func (s *userService) Move(ctx context.Context, request *api.MoveRequest) (*api.MoveReply, error) {
	if _, err := migration.ParseMode(modeOr(request.Mode)); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	c := s.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.world()
	container, err := v.find(request.Container)
	if err != nil {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	target, found := v.index[request.Node]
	if !found {
		return nil, status.Errorf(codes.NotFound, "node %.64s is %v; godwit nodes lists them", request.Node,
			errUnknown)
	}
	v.Requests = []decide.Request{{Container: container, Target: target, By: userOf(ctx)}}
	for _, one := range decide.Decide(v.World, c.now()) {
		if one.Cause != decide.User {
			continue
		}
		if !one.Possible() {
			return nil, status.Error(codes.FailedPrecondition, one.Reason)
		}
		made, err := c.want(ctx, v, []decide.Intent{one}, userOf(ctx), request.Mode)
		if err != nil {
			return nil, status.Error(codes.Unavailable, err.Error())
		}
		c.kick()
		return &api.MoveReply{Intent: c.describeIntent(made[0])}, nil
	}
	return nil, status.Error(codes.Internal, "the request led to no decision")
}

// find returns the running container that a user means: NAME, NAME@NODE, or the beginning of an id.
func (v view) find(reference string) (int, error) {
	name, node, _ := strings.Cut(reference, "@")
	var alike []int
	for i, one := range v.Containers {
		named := one.Name == name || len(name) >= 4 && strings.HasPrefix(one.ID, name)
		if named && (node == "" || v.Nodes[one.Node].Name == node) {
			alike = append(alike, i)
		}
	}
	switch len(alike) {
	case 0:
		return 0, fmt.Errorf("no running container %.80q on any node; godwit ps lists them", reference)
	case 1:
		return alike[0], nil
	}
	return 0, fmt.Errorf("%d containers are called %.80q; give NAME@NODE or the beginning of an id",
		len(alike),
		reference)
}

// Intents lists what is under way, what is recommended and what has ended, the latest first.
func (s *userService) Intents(context.Context, *api.IntentsRequest) (*api.IntentsReply, error) {
	c := s.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	reply := &api.IntentsReply{Intents: slices.Clone(c.advice.recommended)}
	all := slices.SortedFunc(maps.Values(c.state.Intents), func(a, b store.Intent) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID))
	})
	for _, one := range all {
		reply.Intents = append(reply.Intents, c.describeIntent(one))
	}
	return reply, nil
}

func (c *cluster) describeIntent(one store.Intent) *api.Intent {
	told := &api.Intent{
		Id: one.ID, Container: one.Container, Name: one.Name, From: one.From, To: one.To, Cause: one.Cause,
		Reason: one.Reason, Priority: int32(one.Priority), State: string(one.State),
		WaitsFor: c.advice.waits[one.ID],
		Error:    one.Error, CreatedUnixNanoseconds: one.Created.UnixNano(), DowntimeSeconds: one.Downtime,
		TotalSeconds: one.Total, CancelledBy: one.CancelledBy, CancelError: one.CancelError,
	}
	if one.State.Ended() {
		told.EndedUnixNanoseconds, told.WaitsFor = one.EndedAt.UnixNano(), ""
	}
	return told
}

// WatchIntent tells of an intent until it has ended.
func (s *userService) WatchIntent(request *api.WatchIntentRequest,
	stream grpc.ServerStreamingServer[api.Intent]) error {
	c := s.cluster
	for {
		c.mu.Lock()
		one, err := c.intent(request.Id)
		told, changed := c.describeIntent(one), c.watchers.changed
		c.mu.Unlock()
		if err := c.callers.stillMay(stream.Context()); err != nil {
			return err
		}
		if err != nil {
			return err
		}
		request.Id = one.ID
		if err := stream.Send(told); err != nil || one.State.Ended() {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// SetNode changes what is wanted of a node.
func (s *userService) SetNode(ctx context.Context, request *api.SetNodeRequest) (*api.ClusterNode, error) {
	c := s.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	node, found := c.state.Nodes[request.Node]
	if !found {
		return nil, status.Errorf(codes.NotFound, "node %.64s is %v; godwit nodes lists them", request.Node,
			errUnknown)
	}
	if err := c.changeNode(&node, request, userOf(ctx)); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := c.records.put(ctx, store.KindNode, node.Name, node); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	c.state.Nodes[node.Name] = node
	if node.State != store.Draining {
		if err := c.endDrain(ctx, node.Name); err != nil {
			return nil, status.Error(codes.Unavailable, err.Error())
		}
	}
	c.log.Info("node changed", "node", node.Name, "state", node.State, "labels", node.Labels, "by",
		userOf(ctx))
	c.kick()
	return c.describeNode(node.Name), nil
}

// ClusterAudit tells what users asked for while this controller led, the oldest first.
func (s *userService) ClusterAudit(request *api.ClusterAuditRequest,
	stream grpc.ServerStreamingServer[api.ClusterAuditReply]) error {
	since := time.Time{}
	if request.SinceUnixNanoseconds != 0 {
		since = time.Unix(0, request.SinceUnixNanoseconds)
	}
	callers := s.cluster.callers
	return audit.ReadBoth(callers.done, callers.refused, since, func(entry audit.Entry) error {
		document, err := json.Marshal(entry)
		if err != nil {
			return fmt.Errorf("entry of the audit log: %w", err)
		}
		if err := callers.stillMay(stream.Context()); err != nil {
			return err
		}
		return stream.Send(&api.ClusterAuditReply{EntryJson: document})
	})
}

// endDrain takes back the intents of a drain that have not been sent.
func (c *cluster) endDrain(ctx context.Context, node string) error {
	for _, job := range c.queue.All() {
		one := c.state.Intents[job.ID]
		if job.Sent || job.From != node || one.Cause != string(decide.Drain) {
			continue
		}
		one.State, one.EndedAt, one.Error = store.Failed, c.now().UTC(), drainEnded
		if err := c.saveIntents(ctx, []store.Intent{one}, nil); err != nil {
			return err
		}
		c.queue.Remove(job.ID)
	}
	return nil
}

func (c *cluster) changeNode(node *store.Node, request *api.SetNodeRequest, by string) error {
	switch state := store.NodeState(request.State); state {
	case "":
	case store.Active, store.Cordoned:
		node.State, node.Drain = state, nil
	case store.Draining:
		if !(request.DeadlineSeconds >= 0) || request.DeadlineSeconds > 1e8 {
			return fmt.Errorf("deadline in %g s: want a time, or none", request.DeadlineSeconds)
		}
		drain := &store.Drain{By: by, Since: c.now().UTC(), BringBack: request.BringBack}
		if request.DeadlineSeconds > 0 {
			drain.Deadline = drain.Since.Add(time.Duration(request.DeadlineSeconds * float64(time.Second)))
		}
		node.State, node.Drain = state, drain
	default:
		return fmt.Errorf("a node is active, cordoned or draining, not %.40q", request.State)
	}
	node.Labels = maps.Clone(node.Labels)
	if node.Labels == nil {
		node.Labels = map[string]string{}
	}
	for _, key := range request.RemoveLabels {
		delete(node.Labels, key)
	}
	for key, value := range request.Labels {
		if key == "" || len(key) > maxNodeLabelBytes || len(value) > maxNodeLabelBytes ||
			strings.ContainsAny(key+value, "=,|!\n\t") {
			return fmt.Errorf("label %.40q=%.40q: a key or value may have up to %d bytes, and none of the "+
				"characters = , | ! in it", key, value, maxNodeLabelBytes)
		}
		node.Labels[key] = value
	}
	if len(node.Labels) > maxNodeLabels {
		return fmt.Errorf("%d labels; the limit is %d", len(node.Labels), maxNodeLabels)
	}
	return nil
}
