package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/controller/decide"
	"github.com/godwit/godwit/internal/controller/executor"
	"github.com/godwit/godwit/internal/controller/store"
	"github.com/godwit/godwit/internal/wire/pinned"
)

// keepIntents is how many ended intents are kept.
const keepIntents = 1000

// cluster is what the leader knows.
type cluster struct {
	records  records
	log      *slog.Logger
	now      func() time.Time
	enforce  bool
	began    time.Time     // this term
	kicked   chan struct{} // has room for one: something has changed
	bounds   bounds
	callers  *callers
	tokens   *tokens
	watchers *watchers // of intents and of tokens

	mu        sync.Mutex
	state     store.State
	live      map[string]*liveNode // by name
	scratch   []decide.Container   // memory of the last description of the world
	places    *places              // of the containers that run
	selectors selectors
	queue     *executor.Queue
	advice    advice
	refused   map[string]string // why the controller does not listen to a node, by its name
	failures  failures
}

// advice is what the last round found out that users want to know.
type advice struct {
	waits       map[string]string // what intents wait for, by id
	recommended []*api.Intent
	obstacles   map[string][]string // why containers do not leave a node, by its name
}

// liveNode is a node that has connected.
type liveNode struct {
	inventory
	session *session  // nil: it is not connected
	since   time.Time // it is connected, or was last heard
}

// session is a node's stream.
type session struct {
	commands chan *api.Down
	replaced chan struct{} // closed when the node has another stream
}

// openCluster reads the desired state. What was sent by an earlier leader is under way.
func openCluster(ctx context.Context, config Config, b bounds, term store.Term) (*cluster, error) {
	kept, err := config.Store.Load(ctx)
	if err != nil {
		return nil, err
	}
	state, err := store.Decode(kept)
	if err != nil {
		return nil, err
	}
	c := &cluster{
		records: records{config.Store, term}, log: config.Log, now: time.Now, began: time.Now(),
		enforce: config.Enforce, bounds: b,
		kicked: make(chan struct{}, 1), state: state, live: map[string]*liveNode{},
		places: newPlaces(), selectors: selectors{},
		queue: executor.NewQueue(config.Limits), refused: map[string]string{}, failures: failures{},
		watchers: newWatchers(),
	}
	now := func() time.Time { return c.now() } // tests change the clock
	c.callers = newCallers(config, b, state.Tokens, now)
	c.tokens = &tokens{book: c.callers.tokens, records: c.records, cluster: &c.mu, watchers: c.watchers,
		log: config.Log, now: now}
	for _, one := range state.Intents {
		if !one.State.Ended() {
			c.queue.Add(jobOf(one))
		}
	}
	return c, nil
}

func jobOf(one store.Intent) executor.Job {
	return executor.Job{
		ID: one.ID, Container: one.Container, Name: one.Name, From: one.From, To: one.To, Mode: one.Mode,
		Generation: one.Generation, Priority: one.Priority, Created: one.Created.UnixNano(),
		Sent: one.State != store.Queued, Cancelled: one.CancelledBy != "",
	}
}

// kick lets the loop look at the world again.
func (c *cluster) kick() {
	select {
	case c.kicked <- struct{}{}:
	default: // it will look anyway
	}
}

// keyPair is the certificate that all controllers of the cluster show; the first leader makes it.
func (c *cluster) keyPair(ctx context.Context) ([]byte, error) {
	if kept, found := c.state.KeyPairs[keyPairName]; found {
		return kept.PEM, nil
	}
	pair, err := pinned.NewCertificate("controller.godwit", c.now())
	if err != nil {
		return nil, err
	}
	made := store.KeyPair{PEM: pair}
	if err := c.records.put(ctx, store.KindKeyPair, keyPairName, made); err != nil {
		return nil, err
	}
	c.state.KeyPairs[keyPairName] = made
	return pair, nil
}

// saveIntents makes intents durable together with the generations of their containers, and then visible.
func (c *cluster) saveIntents(ctx context.Context, intents []store.Intent,
	containers []store.Container) error {
	var changes []store.Change
	for _, one := range intents {
		change, err := store.Put(store.KindIntent, one.ID, one)
		if err != nil {
			return err
		}
		changes = append(changes, change)
	}
	for _, one := range containers {
		change, err := store.Put(store.KindContainer, one.ID, one)
		if err != nil {
			return err
		}
		changes = append(changes, change)
	}
	surplus := c.surplus()
	surplus = surplus[:min(len(surplus), store.MaxChanges-len(changes))]
	for _, id := range surplus {
		changes = append(changes, store.Remove(store.KindIntent, id))
	}
	if err := c.records.commit(ctx, changes...); err != nil {
		return err
	}
	for _, id := range surplus {
		delete(c.state.Intents, id)
	}
	for _, one := range intents {
		c.state.Intents[one.ID] = one
	}
	for _, one := range containers {
		c.state.Containers[one.ID] = one
	}
	c.watchers.wake()
	return nil
}

// surplus are the ids of ended intents that need not be kept, the oldest first.
func (c *cluster) surplus() []string {
	if len(c.state.Intents) <= keepIntents {
		return nil
	}
	var ended []store.Intent
	for _, one := range c.state.Intents {
		if one.State.Ended() {
			ended = append(ended, one)
		}
	}
	slices.SortFunc(ended, func(a, b store.Intent) int { return a.EndedAt.Compare(b.EndedAt) })
	var ids []string
	for _, one := range ended[:max(0, len(ended)-keepIntents)] {
		ids = append(ids, one.ID)
	}
	return ids
}

// container finds the record of a container, or makes the first.
func (c *cluster) container(id string) store.Container {
	kept, found := c.state.Containers[id]
	if !found {
		kept.ID = id
	}
	return kept
}

// outcome takes over what an agent says of a command.
func (c *cluster) outcome(ctx context.Context, node string, said *api.Outcome) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	intent, found := c.state.Intents[said.Command]
	if !found || intent.From != node || intent.State.Ended() {
		return nil // of an intent that was forgotten, or not this node's, or told before
	}
	before := intent
	var containers []store.Container
	switch said.State {
	case "begun":
		intent.State, intent.CancelError = store.Sent, cmp.Or(cut(said.CancelError), intent.CancelError)
	case "in-doubt":
		intent.State, intent.CancelError = store.Doubt, cmp.Or(cut(said.CancelError), intent.CancelError)
	case "moved":
		intent.State, intent.EndedAt = store.Moved, c.now().UTC()
		intent.Downtime, intent.Total = finite(said.DowntimeSeconds), finite(said.TotalSeconds)
		containers = c.moved(intent)
	case "failed":
		if intent.CancelledBy != "" {
			containers = c.cancelled(&intent, said.Error)
			break
		}
		intent.State, intent.EndedAt = store.Failed, c.now().UTC()
		intent.Error = cut(said.Error)
	default:
		return fmt.Errorf("outcome %.40q of a command is not known", said.State)
	}
	if intent == before {
		return nil
	}
	if err := c.saveIntents(ctx, []store.Intent{intent}, containers); err != nil {
		return err
	}
	switch intent.State {
	case store.Moved:
		c.left(intent)
	case store.Failed:
		c.failures.add(intent, said.Refused, c.traits(intent.To), c.now())
	}
	if intent.State.Ended() {
		c.queue.Remove(intent.ID)
		c.log.Info("intent ended", "intent", intent.ID, "container", intent.Name, "from", intent.From, "to",
			intent.To, "state", intent.State, "error", intent.Error)
	}
	c.kick()
	return nil
}

// left notes that a container has left its source; the target says itself what the container does there.
func (c *cluster) left(intent store.Intent) {
	delete(c.failures, intent.Container)
	if from := c.live[intent.From]; from != nil {
		from.forget(intent.Container)
	}
}

// moved returns the record of a container that has moved if that has changed: a container that was drained
// remembers its home.
func (c *cluster) moved(intent store.Intent) []store.Container {
	record := c.container(intent.Container)
	home := ""
	if drain := c.state.Nodes[intent.From].Drain; intent.Cause == "drain" && drain != nil && drain.BringBack {
		home = cmp.Or(record.Home, intent.From)
	}
	if record.Home == home {
		return nil
	}
	record.Home = home
	return []store.Container{record}
}

// finite is a time that JSON can carry.
func finite(seconds float64) float64 {
	if math.IsNaN(seconds) || math.IsInf(seconds, 0) {
		return 0
	}
	return seconds
}

// maxTextBytes bounds a text from an agent that is kept.
const maxTextBytes = 2000

func cut(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxTextBytes)], "")
}

// errUnknown means that a user named something that is not there.
var errUnknown = errors.New("not known to the controller")
