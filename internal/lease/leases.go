package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/wire/identity"
)

// Config of Leases.
type Config struct {
	Path    string // of the file with the notes
	Self    int    // number of this node
	Network Network
	Nodes   Nodes
	// Gone is called before another node hears that a container is gone: greetings must stop naming the
	// container before its home node forgets the address.
	Gone    func(definition engine.Definition)
	Timeout time.Duration // of a call to another node
	Every   time.Duration // how often nodes greet each other
	Log     *slog.Logger
}

// Network has the pool of addresses, and the leases of this node. See network.Network.
type Network interface {
	Home(address netip.Addr) (number int, err error)
	Leases() []network.Lease
	ReleaseLease(container string) error
}

// Nodes are the other nodes. See cluster.Peers.
type Nodes interface {
	ByNumber(number int) (name string, known bool)
	Find(name string) (identity.Node, error)
	Client(node identity.Node) (*grpc.ClientConn, error)
}

// Engine is the node's own.
type Engine interface {
	Inspect(ctx context.Context, container string) (engine.Container, error)
}

// Leases are the addresses of the pool as this node knows them.
type Leases struct {
	ctx    context.Context //nolint:containedctx // The life of the node: giving back outlives the call.
	config Config
	notes  notes
	again  sync.Map // containers whose release is about to be retried
}

// New reads no notes yet. ctx is the life of the node.
func New(ctx context.Context, config Config) *Leases {
	return &Leases{ctx: ctx, config: config, notes: notes{path: config.Path}}
}

// AtHome reports whether an address belongs to this node.
func (l *Leases) AtHome(address netip.Addr) bool {
	number, err := l.config.Network.Home(address)
	return err == nil && number == l.config.Self
}

// Of is the container to which this node has given an address; empty if to none.
func (l *Leases) Of(address netip.Addr) string {
	for _, lease := range l.config.Network.Leases() {
		if lease.Address == address {
			return lease.Container
		}
	}
	return ""
}

// GiveBack tells the home node of an address that its container is gone, now or when that node is back.
func (l *Leases) GiveBack(definition engine.Definition) error {
	todo := release{Address: definition.Network.Address, Container: definition.ID}
	if err := l.notes.change(todo.Container, &todo); err != nil {
		return err
	}
	go guard.Logged(l.config.Log, func() {
		l.config.Gone(definition)
		l.releaseOne(todo)
	})()
	return nil
}

// Repeat gives back at a node what could not be given back before.
func (l *Leases) Repeat(node string) {
	all, err := l.notes.list()
	if err != nil {
		l.config.Log.Warn("addresses are not given back", "error", err)
	}
	for _, todo := range all {
		if name, known := l.homeOf(todo.Address); known && name == node {
			l.releaseOne(todo)
		}
	}
}

func (l *Leases) homeOf(address netip.Addr) (name string, known bool) {
	number, err := l.config.Network.Home(address)
	if err != nil {
		return "", false
	}
	return l.config.Nodes.ByNumber(number)
}

func (l *Leases) releaseOne(todo release) {
	err := l.callRelease(todo)
	switch status.Code(err) {
	// what that node refuses it will refuse again
	case codes.OK, codes.InvalidArgument, codes.PermissionDenied:
		err = errors.Join(err, l.notes.change(todo.Container, nil))
	case codes.FailedPrecondition:
		l.releaseAgain(todo)
		l.config.Log.Debug("address not given back yet; the agent tries "+
			"again", "address", todo.Address, "error", err)
		return
	}
	if err != nil {
		l.config.Log.Info("address not given back", "address", todo.Address, "error", err)
	}
}

// releaseAgain retries after the next hello. The address's home node believes that another node has
// the container, until that node no longer tells of it.
func (l *Leases) releaseAgain(todo release) {
	if _, soon := l.again.LoadOrStore(todo.Container, true); soon {
		return
	}
	time.AfterFunc(l.config.Every, guard.Logged(l.config.Log, func() {
		l.again.Delete(todo.Container)
		if l.ctx.Err() == nil {
			l.releaseOne(todo)
		}
	}))
}

func (l *Leases) callRelease(todo release) error {
	name, known := l.homeOf(todo.Address)
	if !known {
		return fmt.Errorf("the node of %s is not known", todo.Address)
	}
	node, err := l.config.Nodes.Find(name)
	if err != nil {
		return err
	}
	client, err := l.config.Nodes.Client(node)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(l.ctx, l.config.Timeout)
	defer cancel()
	_, err = api.NewPeerClient(client).Release(ctx,
		&api.ReleaseRequest{Address: todo.Address.String(), Container: todo.Container})
	return err
}

// TakeBack takes the addresses back of containers that an earlier agent did not come to make. Only the node's
// own engine makes containers for such notes, and only that engine is asked: another one may hang, and the
// agent does not serve yet.
func (l *Leases) TakeBack(ctx context.Context, own Engine) {
	all, err := l.notes.list()
	for _, todo := range all {
		if !todo.Address.IsValid() {
			err = errors.Join(err, l.takeBackOne(ctx, own, todo.Container))
		}
	}
	if err != nil {
		l.config.Log.Warn("cannot take back the addresses of containers that were never made", "error", err)
	}
}

func (l *Leases) takeBackOne(ctx context.Context, own Engine, container string) error {
	_, err := own.Inspect(ctx, container)
	if errors.Is(err, engine.ErrNotFound) {
		err = l.config.Network.ReleaseLease(container)
	}
	if err != nil {
		return err
	}
	return l.notes.change(container, nil)
}

// Making notes that an address is about to be taken for a container. If this agent is killed before there is
// a container, the next one takes the address back.
func (l *Leases) Making(container string) error {
	return l.notes.change(container, &release{Container: container})
}

// Made notes that there is a container for the address that was taken for it, or that it was given
// back. A note that stays does no harm: the next agent looks whether there is one.
func (l *Leases) Made(container string) {
	if err := l.notes.change(container, nil); err != nil {
		l.config.Log.Warn("cannot remove the note of a container that was being made", "error", err)
	}
}
