package link

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/transfer/progress"
	"github.com/godwit/godwit/internal/wire/stream"
)

// Peers knows what links to other nodes carry; cluster.Peers does.
type Peers interface {
	WayTo(node string) predict.Link
	NoteLink(node string, link stream.Link)
}

// Settings are the user's, who may change them while the migration is under way.
type Settings interface {
	Get() migration.Settings
}

// Config is what a link is made of.
type Config struct {
	ID       string // of the migration
	Target   string // the name of the node
	Mode     migration.Mode
	Cores    int // of this node
	Dial     Dial
	Peers    Peers
	Fresh    time.Duration // for how long a measurement of a link counts
	Settings Settings
	Figures  *progress.Tracker
	Apart    string // the purpose of connections that are used when the others are not, mostly
	// Layers is what layers of the image have sent from here, over connections of their own. Not sending:
	// none of them are to be sent.
	Layers func() (sent stream.Counters, sending bool)
	Log    *slog.Logger
}

// Link is all data connections of a migration from this node.
type Link struct {
	config  Config
	early   *Early // nil: none
	limiter stream.Limiter
	warming chan error // data is being measured while the target gets ready; nil: it was

	mu   sync.Mutex
	data *stream.Session // the first one; nil: it is not open
	out  *stream.Sections
	more []beside
}

// New makes a link without connections. early has connections that were made before; nil: there are none.
func New(config Config, early *Early) *Link { return &Link{config: config, early: early} }

// Open opens the first connection, which carries everything that has no connection of its own.
func (l *Link) Open(ctx context.Context, purpose string) (*stream.Session, error) {
	l.Limit(l.config.Settings.Get().BandwidthLimit)
	data, err := l.open(ctx, purpose, l.config.Cores)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.data, l.out = data, stream.NewSections(data, l.config.Figures.Transferred)
	return data, nil
}

// Data is the first connection; nil: it is not open.
func (l *Link) Data() *stream.Session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.data
}

// Out is what writes sections to the first connection.
func (l *Link) Out() *stream.Sections {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out
}

// Limiter is the bandwidth limit of all connections.
func (l *Link) Limiter() *stream.Limiter { return &l.limiter }

// Limit limits what all connections carry, in bits per second; 0: nothing does.
func (l *Link) Limit(bitsPerSecond float64) { l.limiter.SetRate(bitsPerSecond) }

// OpenMore opens a data connection beside the first one, with workers that compress. All connections of a
// migration share its bandwidth limit.
func (l *Link) OpenMore(ctx context.Context, purpose string, workers int) (*stream.Session, error) {
	data, err := l.open(ctx, purpose, workers)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.more = append(l.more, beside{purpose, data})
	return data, nil
}

func (l *Link) open(ctx context.Context, purpose string, workers int) (*stream.Session, error) {
	options := stream.Options{Workers: workers, Eager: true}
	data, err := l.OpenWith(ctx, stream.Hello{Purpose: purpose}, options)
	if err != nil {
		return nil, err
	}
	data.Adapt(func(from, to stream.Codec) {
		l.config.Log.Debug("codec", "migration", l.config.ID, "from", from.String(), "to", to.String(),
			"link", data.LinkBitsPerSecond())
		l.config.Figures.ChangedCodec(from, to)
	})
	return data, nil
}

// OpenWith opens a data connection with these options, beside the first one and under the common limit.
func (l *Link) OpenWith(ctx context.Context, hello stream.Hello,
	options stream.Options) (*stream.Session, error) {
	options.Limiter, options.Beside = &l.limiter, l.Data()
	conn, err := l.connect(ctx)
	if err != nil {
		return nil, err
	}
	hello.Migration = l.config.ID
	data, err := stream.Open(ctx, conn, hello, options)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return data, nil
}

// connect takes one of the connections that were made early, or makes one.
func (l *Link) connect(ctx context.Context) (net.Conn, error) {
	if conn, err := l.early.take(ctx); conn != nil || err != nil {
		return conn, err
	}
	return l.config.Dial(ctx)
}

// EndEarly gives up the connections that were made early and nobody has taken.
func (l *Link) EndEarly() { l.early.End() }

// Codec is what gets most through the link, as far as is known.
func (l *Link) Codec() stream.Codec {
	data := l.Data()
	if data == nil {
		return stream.Choose(0, l.config.Cores).Codec
	}
	return data.Codec()
}

// Section sends a small section whole.
func (l *Link) Section(kind, name string, content []byte) error {
	return l.Out().Whole(kind, name, content)
}

// Send sends a small section whole, and returns when the kernel has it.
func (l *Link) Send(kind, name string, content []byte) error {
	if err := l.Section(kind, name, content); err != nil {
		return err
	}
	return l.Data().Flush()
}

// Tell sends a small section whole, and does not wait until it has left.
func (l *Link) Tell(kind string) error {
	if err := l.Section(kind, "", nil); err != nil {
		return err
	}
	return l.Data().Push()
}

// Begin starts a section; what is written to it counts as progress. Close must be called: it lets
// the next one begin.
func (l *Link) Begin(kind, name string) (io.WriteCloser, error) { return l.Out().Begin(kind, name) }

// KeepFinal closes the connection unless the final marker may have left, and reports whether the marker
// certainly stays on this node. A marker that was sent may still be queued in the stream behind unsent
// content; closing the stream then keeps it from leaving.
func (l *Link) KeepFinal() bool {
	data := l.Data()
	if data.FinalMayHaveLeft() {
		return false
	}
	_ = data.Close() // the error is always nil
	return !data.FinalMayHaveLeft()
}
