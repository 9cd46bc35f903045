package controller

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/controller/decide"
	"github.com/godwit/godwit/internal/controller/executor"
	"github.com/godwit/godwit/internal/controller/store"
)

const (
	// decideEvery is how often the world is looked at if nothing changes: deadlines come near.
	decideEvery = 5 * time.Second
	// gatherFor lets changes that come together cost one decision.
	gatherFor = 20 * time.Millisecond
	// batch is how many intents are written at once: each takes two records.
	batch = store.MaxChanges/2 - 1
)

// loop decides and acts whenever something has changed. Error: the term has ended.
func (c *cluster) loop(ctx context.Context) error {
	ticker := time.NewTicker(decideEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-c.kicked:
			time.Sleep(gatherFor)
		}
		if err := c.round(ctx); errors.Is(err, store.ErrNotLeader) {
			return err
		} else if err != nil && ctx.Err() == nil {
			c.log.Error("the controller cannot act on its decisions, and tries again", "error", err)
		}
	}
}

// round decides once, and begins what may begin.
func (c *cluster) round(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.world()
	c.recommended, c.obstacles = nil, map[string][]string{}
	var wanted []decide.Intent
	for _, one := range decide.Decide(v.World, c.now()) {
		from := v.Nodes[v.Containers[one.Container].Node].Name
		switch {
		case !one.Possible():
			c.obstacles[from] = append(c.obstacles[from], v.Containers[one.Container].Name+": "+one.Reason)
		case one.Recommended:
			c.recommended = append(c.recommended, recommendation(v, one))
		default:
			wanted = append(wanted, one)
		}
	}
	for len(wanted) > 0 {
		n := min(len(wanted), batch)
		if _, err := c.want(ctx, v, wanted[:n], "", ""); err != nil {
			return err
		}
		wanted = wanted[n:]
	}
	return c.begin(ctx)
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
	c.waits = map[string]string{}
	for _, one := range waiting {
		c.waits[one.Job.ID] = one.For
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
	command := c.queue.Command(job, c.term.Epoch())
	select {
	case live.session.commands <- &api.Command{
		Id: command.ID, Epoch: command.Epoch, Generation: command.Generation, Container: command.Container,
		Node: command.To, Mode: modeOr(command.Mode), BandwidthLimitBitsPerSecond: command.BitsPerSecond,
	}:
	default:
		c.log.Warn("a node takes no commands; it gets them when it connects again", "node", job.From)
	}
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
