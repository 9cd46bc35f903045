package uplink

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/wire/pinned"
)

const (
	lookEvery    = 2 * time.Second // for changes of containers, and for the configuration
	firstBackoff = 500 * time.Millisecond
	maxBackoff   = 15 * time.Second
	pingAfter    = 10 * time.Second
	pingTimeout  = 5 * time.Second
	helloTimeout = 10 * time.Second
)

// Uplink is the connection of one node.
type Uplink struct {
	state       string
	node        Node
	described   *described
	certificate func() *tls.Certificate
	log         *slog.Logger
	now         func() time.Time
	journal     *journal
	following   sync.WaitGroup

	mu     sync.Mutex
	stream *told // nil: not connected
}

// told is a stream, and what the controller knows by it.
type told struct {
	send func(*api.Up) error
	has  *api.NodeState
}

// Options of an uplink.
type Options struct {
	State       string // directory
	Node        Node
	Certificate func() *tls.Certificate // of the node
	Log         *slog.Logger
}

// New opens the journal of commands. Nothing is dialled before Run.
func New(o Options) (*Uplink, error) {
	j, err := openJournal(filepath.Join(o.State, "commands.json"))
	if err != nil {
		return nil, err
	}
	return &Uplink{
		state: o.State, node: o.Node, described: &described{agent: o.Node}, certificate: o.Certificate,
		log: o.Log, now: time.Now, journal: j,
	}, nil
}

// Run keeps the node connected to a controller, if it has one, until ctx ends.
func (u *Uplink) Run(ctx context.Context) {
	defer u.following.Wait()
	for _, one := range u.journal.open() { // of an earlier agent
		u.following.Go(guard.Logged(u.log, func() { u.follow(ctx, one) }))
	}
	backoff, said := firstBackoff, ""
	for ctx.Err() == nil {
		config, server, found, err := load(u.state)
		if !found {
			if err != nil && err.Error() != said {
				said = err.Error()
				u.log.Error("the controller's address cannot be read; connect again with \"godwit node "+
					"connect\"",
					"error", err)
			}
			wait(ctx, lookEvery)
			continue
		}
		connected, err := u.tryAll(ctx, config, server)
		if connected {
			backoff, said = firstBackoff, ""
		}
		if err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			u.log.Warn("no connection to the controller; the node goes on without it", "error", err)
		}
		wait(ctx, jittered(backoff))
		backoff = min(2*backoff, maxBackoff)
	}
}

// jittered keeps thousands of agents from dialling at once.
func jittered(d time.Duration) time.Duration {
	return d/2 + time.Duration(rand.Int64N(int64(d))) //nolint:gosec // no secret
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// tryAll dials one controller after the other, and returns when each has failed, or a connection has ended.
func (u *Uplink) tryAll(ctx context.Context, config Config, server pinned.Fingerprint) (bool, error) {
	var failed error
	addresses := config.Addresses
	for _, i := range rand.Perm(len(addresses)) { //nolint:gosec // no secret
		connected, err := u.connect(ctx, addresses[i], server, config.controller())
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("controller %s: %w", addresses[i],
				errors.New(api.Plain(err))))
		}
		if connected || ctx.Err() != nil {
			return connected, failed
		}
	}
	return false, failed
}

// Dial makes a client of a controller. certificate: the node's; nil: the client is a user.
func Dial(address string, server pinned.Fingerprint, certificate func() *tls.Certificate,
	options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address, append(options,
		grpc.WithTransportCredentials(credentials.NewTLS(pinned.ClientConfig(server, certificate))),
		grpc.WithNoProxy(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout}))...)
}

// connect is one connection, from the first message to its end.
func (u *Uplink) connect(ctx context.Context, address string, server pinned.Fingerprint,
	controller string) (connected bool, err error) {
	client, err := Dial(address, server, u.certificate)
	if err != nil {
		return false, err
	}
	defer client.Close()
	life := ctx // a migration lives longer than the connection
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := api.NewUplinkClient(client).Connect(ctx)
	if err != nil {
		return false, err
	}
	whole, err := u.described.state(ctx, true, u.now())
	if err != nil {
		return false, err
	}
	for _, part := range stateParts(whole) {
		if err := stream.Send(part); err != nil {
			_, err = stream.Recv() // it has the reason
			return false, err
		}
	}
	silent := time.AfterFunc(helloTimeout, cancel)
	first, err := stream.Recv()
	silent.Stop()
	if err == nil {
		err = u.journal.meet(controller, first.Epoch)
	}
	if err != nil {
		return false, err
	}
	u.log.Info("connected to the controller", "address", address, "epoch", first.Epoch)
	u.set(&told{send: stream.Send, has: whole})
	defer u.set(nil)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(guard.Logged(u.log, func() { u.watch(ctx) }))
	for {
		down, err := stream.Recv()
		if err != nil {
			return true, err
		}
		if down.Command != nil {
			u.execute(life, down.Command)
		}
		if down.Cancel != nil {
			u.cancel(down.Cancel)
		}
	}
}

func (u *Uplink) set(stream *told) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.stream = stream
}

// watch tells of changes until the connection ends.
func (u *Uplink) watch(ctx context.Context) {
	for ctx.Err() == nil {
		wait(ctx, lookEvery)
		u.refresh(ctx, false)
	}
}

// tell sends an outcome. One that is lost is sent again when the controller repeats its command.
func (u *Uplink) tell(outcome *api.Outcome) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.stream != nil {
		u.lost(u.stream.send(&api.Up{Outcome: outcome}))
	}
}

// lost notes that nothing more can be sent; the receiver hears the reason.
func (u *Uplink) lost(err error) {
	if err != nil {
		u.stream = nil
	}
}

// refresh tells what has changed on the node since the controller was last told.
func (u *Uplink) refresh(ctx context.Context, fresh bool) {
	now, err := u.described.state(ctx, fresh, u.now())
	if err != nil {
		u.log.Debug("containers cannot be listed for the controller", "error", err)
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.stream == nil {
		return
	}
	delta := difference(u.stream.has, now)
	if delta == nil {
		return
	}
	u.stream.has = now
	for _, part := range deltaParts(delta) {
		if u.stream != nil {
			u.lost(u.stream.send(&api.Up{Delta: part}))
		}
	}
}

const (
	// memoryStep is the change of free memory that is told without other changes.
	memoryStep = 64 << 20
	// rateStep is the change of a link's bandwidth that is told.
	rateStep = 1.25
)

// difference is what has changed; nil: nothing that matters.
func difference(before, after *api.NodeState) *api.Delta {
	delta := &api.Delta{FreeBytes: after.FreeBytes}
	had := map[string]*api.NodeContainer{}
	for _, one := range before.Containers {
		had[one.Id] = one
	}
	for _, one := range after.Containers {
		if was := had[one.Id]; was == nil || !alike(was, one) {
			delta.Containers = append(delta.Containers, one)
		}
		delete(had, one.Id)
	}
	for id := range had {
		delta.Gone = append(delta.Gone, id)
	}
	rates := map[string]float64{}
	for _, one := range before.Links {
		rates[one.Node] = one.BitsPerSecond
	}
	for _, one := range after.Links {
		if was := rates[one.Node]; one.BitsPerSecond > was*rateStep || one.BitsPerSecond < was/rateStep {
			delta.Links = append(delta.Links, one)
		}
	}
	moved := after.FreeBytes - before.FreeBytes
	if len(delta.Containers)+len(delta.Gone)+len(delta.Links) == 0 && moved < memoryStep &&
		moved > -memoryStep {
		return nil
	}
	return delta
}

// alike reports whether a container is as before. Small changes of its memory do not matter.
func alike(a, b *api.NodeContainer) bool {
	if change := a.MemoryBytes - b.MemoryBytes; change >= memoryStep || change <= -memoryStep {
		return false
	}
	c := proto.Clone(b).(*api.NodeContainer)
	c.MemoryBytes = a.MemoryBytes
	return proto.Equal(a, c)
}
