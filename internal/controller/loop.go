package controller

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/controller/decide"
	"github.com/godwit/godwit/internal/controller/executor"
	"github.com/godwit/godwit/internal/controller/store"
	"github.com/godwit/godwit/internal/guard"
)

const (
	// decideEvery is how often the world is looked at if nothing changes: deadlines come near.
	decideEvery = 5 * time.Second
	// gatherFor lets changes that come together cost one decision.
	gatherFor = 20 * time.Millisecond
	// awayPatience is how long a target may be away before a container goes elsewhere: an agent's restart
	// takes seconds.
	awayPatience = 30 * time.Second
	// batch is how many intents are written at once: each takes two records.
	batch = store.MaxChanges/2 - 1
)

// loop decides and acts whenever something has changed. Error: the term has ended.
func (c *cluster) loop(ctx context.Context) error {
	ticker := time.NewTicker(decideEvery)
	defer ticker.Stop()
	took := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-c.kicked:
			time.Sleep(max(gatherFor, took)) // so that no more than half of a core goes into decisions
		}
		began := time.Now()
		err := guard.Do(func() error { return c.round(ctx) })
		took = time.Since(began)
		guard.LogPanic(c.log, err)
		switch {
		case errors.Is(err, store.ErrNotLeader):
			return err
		case err != nil && ctx.Err() == nil:
			c.log.Error("the controller cannot act on its decisions, and tries again", "error", err)
		}
	}
}

// round decides once, and begins what may begin.
func (c *cluster) round(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	failed := errors.Join(c.tokens.sweep(ctx), c.dropStale(ctx))
	if errors.Is(failed, store.ErrNotLeader) {
		return failed
	}
	c.failures.forget(c.now())
	v := c.world()
	c.advice.recommended, c.advice.obstacles = nil, map[string][]string{}
	var wanted []decide.Intent
	for _, one := range decide.Decide(v.World, c.now()) {
		from := v.Nodes[v.Containers[one.Container].Node].Name
		switch {
		case !one.Possible():
			c.advice.obstacles[from] = append(c.advice.obstacles[from],
				v.Containers[one.Container].Name+": "+one.Reason)
		case one.Recommended:
			c.advice.recommended = append(c.advice.recommended, recommendation(v, one))
		default:
			wanted = append(wanted, one)
		}
	}
	for len(wanted) > 0 {
		n := min(len(wanted), batch)
		_, err := c.want(ctx, v, wanted[:n], "", "")
		if errors.Is(err, store.ErrNotLeader) {
			return err
		}
		failed = errors.Join(failed, err) // what is queued already goes on
		wanted = wanted[n:]
	}
	return errors.Join(failed, c.begin(ctx))
}

// dropStale ends intents that were queued and whose reason is gone, so that Decide can look for another way.
func (c *cluster) dropStale(ctx context.Context) error {
	var stale []store.Intent
	for _, job := range c.queue.All() {
		if why := c.staleness(job); why != "" {
			intent := c.state.Intents[job.ID]
			intent.State, intent.EndedAt, intent.Error = store.Failed, c.now().UTC(), why
			stale = append(stale, intent)
		}
	}
	for ended := range slices.Chunk(stale, batch) {
		if err := c.saveIntents(ctx, ended, nil); err != nil {
			return err
		}
		for _, one := range ended {
			c.queue.Remove(one.ID)
			c.log.Info("intent ended", "intent", one.ID, "container", one.Name, "state", one.State, "error",
				one.Error)
		}
	}
	return nil
}

// drainEnded is why the queued intents of a drain that was ended did not begin.
const drainEnded = "the drain was ended"

// staleness says why a job need not begin any more; empty: it may have begun, or is still wanted. A user's
// move waits for its target.
func (c *cluster) staleness(job executor.Job) string {
	if job.Sent {
		return ""
	}
	if from := c.live[job.From]; from != nil && from.session != nil {
		if one := from.containers[job.Container]; one == nil || one.State != running {
			return "it does not run at " + job.From + " any more"
		}
	}
	switch decide.Cause(c.state.Intents[job.ID].Cause) {
	case decide.User:
		return ""
	case decide.Drain:
		if c.state.Nodes[job.From].State != store.Draining {
			return drainEnded // and the leader at that time did not get to its intents
		}
	}
	if c.awayFor(job.To) > awayPatience {
		return job.To + " is not connected any more"
	}
	if c.state.Nodes[job.To].State != store.Active {
		return job.To + " takes no containers any more"
	}
	return ""
}

// awayFor is how long a node has not been connected, as far as this leader knows; 0: it is.
func (c *cluster) awayFor(name string) time.Duration {
	live := c.live[name]
	switch {
	case live == nil:
		return c.now().Sub(c.began)
	case live.session == nil:
		return c.now().Sub(live.since)
	}
	return 0
}

// want makes intents durable, and queues them.
func (c *cluster) want(ctx context.Context, v view, wanted []decide.Intent, by, mode string) ([]store.Intent,
	error) {
	var intents []store.Intent
	var containers []store.Container
	for _, one := range wanted {
		of := v.Containers[one.Container]
		record := c.container(of.ID)
		record.Generation++
		record.Held = nil // whoever asks for this move releases the container
		containers = append(containers, record)
		intents = append(intents, store.Intent{
			ID: newID(), Container: of.ID, Name: of.Name, From: v.Nodes[of.Node].Name,
			To: v.Nodes[one.Target].Name, Mode: mode, Cause: string(one.Cause), Reason: one.Reason, By: by,
			Priority: one.Priority, Generation: record.Generation, State: store.Queued,
			Created: c.now().UTC(), Bytes: of.Bytes,
		})
	}
	if err := c.saveIntents(ctx, intents, containers); err != nil {
		return nil, err
	}
	for _, one := range intents {
		c.queue.Add(jobOf(one))
		c.log.Info("intent", "intent", one.ID, "container", one.Name, "from", one.From, "to", one.To, "cause",
			one.Cause, "reason", one.Reason)
	}
	return intents, nil
}

// newID is the id of an intent and of its migration.
func newID() string {
	var id [8]byte
	_, _ = rand.Read(id[:]) // it never fails: see crypto/rand
	return hex.EncodeToString(id[:])
}

// begin sends the commands of intents whose turn it is. That they are sent is durable before they are.
func (c *cluster) begin(ctx context.Context) error {
	begin, waiting := c.queue.Next(func(node string) bool {
		return c.live[node] != nil && c.live[node].session != nil
	})
	c.advice.waits = map[string]string{}
	for _, one := range waiting {
		c.advice.waits[one.Job.ID] = one.For
	}
	for len(begin) > 0 {
		n := min(len(begin), batch)
		var sent []store.Intent
		for _, job := range begin[:n] {
			intent := c.state.Intents[job.ID]
			intent.State, intent.SentAt = store.Sent, c.now().UTC()
			sent = append(sent, intent)
		}
		if err := c.saveIntents(ctx, sent, nil); err != nil {
			return err
		}
		for _, job := range begin[:n] {
			c.queue.Sent(job.ID)
			c.send(job)
		}
		begin = begin[n:]
	}
	return nil
}

// send hands a command to the node's stream. If the stream is stuck or has ended, the node gets the command
// when it connects again.
func (c *cluster) send(job executor.Job) {
	live := c.live[job.From]
	if live == nil || live.session == nil {
		return
	}
	select {
	case live.session.commands <- message(c.queue.Command(job, c.records.term.Epoch())):
	default:
		c.log.Warn("a node takes no commands; it gets them when it connects again", "node", job.From)
	}
}

// message is a command as an agent gets it.
func message(command executor.Command) *api.Down {
	told := &api.Command{
		Id: command.ID, Epoch: command.Epoch, Generation: command.Generation, Container: command.Container,
		Node: command.To, Mode: modeOr(command.Mode), BandwidthLimitBitsPerSecond: command.BitsPerSecond,
	}
	if command.Cancel {
		return &api.Down{Cancel: told}
	}
	return &api.Down{Command: told}
}

// modeOr is the mode of a command; without one, the source's agent chooses.
func modeOr(mode string) string {
	if mode == "" {
		return "auto"
	}
	return mode
}

func recommendation(v view, one decide.Intent) *api.Intent {
	of := v.Containers[one.Container]
	return &api.Intent{
		Container: of.ID, Name: of.Name, From: v.Nodes[of.Node].Name, To: v.Nodes[one.Target].Name,
		Cause: string(one.Cause), Reason: one.Reason, Priority: int32(one.Priority), State: "recommended",
	}
}
