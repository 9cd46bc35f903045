package postcopy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
	"github.com/godwit/godwit/internal/wire/stream"
)

// Reader reads the pages that stayed at the source: buffer, which has whole pages, from address on. Its
// methods are called concurrently.
type Reader interface {
	Read(task memory.Task, address uint64, buffer []byte) error
}

// farewell is how long the end of a post-copy push may take when the target has said that it has
// everything: nothing depends on it.
const farewell = 5 * time.Second

// ServerConfig describes what stayed at the source.
type ServerConfig struct {
	Pages Reader
	// Remote lists the pages that stayed. nil: the target's own list is used, and must be trusted.
	Remote []memory.TaskMap
	// Hot lists pages that are probably needed first.
	Hot []memory.TaskMap
	// Soon lists pages that are needed before all others, in this order. Pages that are not remote are
	// ignored.
	Soon []memory.RemoteFault
	// Known returns what the target had of a page, if known; nil: nothing is known. Pages with few changes
	// since are sent as changes, if the target accepts them.
	Known func(task memory.Task, address uint64, page []byte) bool
	// Key is that of the migration's digests, for Known.
	Key pipeline.Key
	// Push is closed when pages may be pushed; nil: at once. Requested pages leave before, too.
	Push <-chan struct{}
	// Silence is how long nothing may come from the target; 0: any time. Meanwhile it is asked for signs of
	// life.
	Silence time.Duration
	// Lacks is called with the target's missing pages, if Remote did not list what stayed; nil: it is not
	// called.
	Lacks func([]memory.TaskMap)
	// Report is called with the target's progress, about once a second, and at the end; nil: it is not
	// called.
	Report func(memory.FillReport)
}

// Server sends the pages that stayed at the source to the target.
type Server struct {
	config  ServerConfig
	changer *changer // nil: the target's earlier content is unknown
	tally   tally

	mu      sync.Mutex
	queue   *queue // nil: it is unknown what is missing
	current bool   // the queue says what the target misses
	serving bool
}

// NewServer returns a server. The lists in config must not be changed afterwards.
func NewServer(config ServerConfig) (*Server, error) {
	s := &Server{config: config}
	var err error
	if config.Known != nil {
		if s.changer, err = newChanger(config.Known, config.Key); err != nil {
			return nil, err
		}
	}
	if config.Remote == nil {
		return s, nil
	}
	if s.queue, err = newQueue(config.Remote, config.Hot, config.Soon); err != nil {
		return nil, fmt.Errorf("list the pages that stay at the source: %w", err)
	}
	s.current = true
	s.leftChanged()
	return s, nil
}

// Stats returns the counts so far. It may be called at any time.
func (s *Server) Stats() Stats { return s.tally.snapshot() }

// Serve serves the target over two connections, which it owns and closes when it returns. It returns nil
// when the target has said that it has everything. Otherwise it can be called again with new connections,
// and continues with what the target then reports as missing; ErrSource and ErrPeer mean that this is
// useless.
func (s *Server) Serve(ctx context.Context, urgent, push Session) error {
	known, err := s.begin()
	if err != nil {
		hangUp(urgent, push, nil)
		return err
	}
	defer s.end()
	v := &serving{Server: s, urgent: urgent, push: push, known: make(chan struct{}),
		over: make(chan struct{})}
	v.pulse.began = time.Now()
	if known {
		close(v.known)
		v.early = true
	}
	err = together(ctx, urgent, push, v.hear, v.answer, v.send, v.watch)
	if v.farewell != nil {
		v.farewell.Stop()
	}
	select {
	case <-v.over:
		return nil // whatever became of the connections
	default:
	}
	return err
}

// begin reports whether it is known what is missing. From now on it is not, because pages may get lost.
func (s *Server) begin() (known bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.serving {
		return false, errors.New("remote pages are being served over other connections")
	}
	known = s.current
	s.serving, s.current = true, false
	s.tally.connected()
	return known, nil
}

func (s *Server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serving = false
}

// leftChanged publishes how much is left. The queue must be locked, or not in use yet.
func (s *Server) leftChanged() {
	left := int64(s.queue.count)
	s.tally.update(func(t *Stats) { t.LeftPages = left })
}

// missing takes over the target's map.
func (s *Server) missing(maps []memory.TaskMap) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queue == nil {
		q, err := newQueue(maps, s.config.Hot, s.config.Soon)
		if err != nil {
			return peerError("the map of what is missing: %w", err)
		}
		s.queue = q
	} else if err := s.queue.reset(maps); err != nil {
		return peerError("the map of what is missing: %w", err)
	}
	s.leftChanged()
	return nil
}

// serving is a Server with connections.
type serving struct {
	*Server
	urgent, push Session
	known        chan struct{} // closed when it is known what is missing
	over         chan struct{} // closed when the target has all
	early        bool          // it was known before the target said it
	changes      atomic.Bool   // pages may be sent as changes: the target has said that it takes them
	pulse        pulse
	farewell     *time.Timer // ends the connections if they do not end by themselves; only hear sets it
}

// hear processes the target's messages on the push connection.
func (v *serving) hear(context.Context) error {
	told := false
	for {
		next, err := v.push.Next()
		if errors.Is(err, io.EOF) {
			return v.ended()
		}
		if err != nil {
			return during("hear how far the target is", err)
		}
		v.pulse.beat()
		switch {
		case next.Kind == kindMissing && !told:
			told = true
			err = v.hearMissing(next)
		case next.Kind == kindStatus || next.Kind == kindComplete:
			err = v.hearStatus(next)
		default:
			err = unknown(next)
		}
		if err != nil {
			return err
		}
	}
}

func (v *serving) hearMissing(next stream.Section) error {
	maps, err := decodeMissing(next)
	if err != nil {
		return err
	}
	v.changes.Store(v.changer != nil && next.Name == takesChanges)
	if v.early { // what was known is what is missing, and some of it may have left
		if _, err := v.queue.layout.choose(maps); err != nil {
			return peerError("the map of what is missing: %w", err)
		}
		return nil
	}
	if err := v.missing(maps); err != nil {
		return err
	}
	if v.config.Remote == nil && v.config.Lacks != nil {
		v.config.Lacks(maps)
	}
	close(v.known)
	return nil
}

func (v *serving) hearStatus(next stream.Section) error {
	report, err := decodeStatus(next)
	if err != nil {
		return err
	}
	if v.config.Report != nil {
		v.config.Report(report)
	}
	if next.Kind == kindComplete {
		select {
		case <-v.over:
			return unknown(next)
		default:
		}
		v.tally.complete()
		close(v.over)
		v.farewell = time.AfterFunc(farewell, func() { hangUp(v.urgent, v.push, nil) })
	}
	return nil
}

// ended reports whether the target may end its side of the push connection.
func (v *serving) ended() error {
	select {
	case <-v.over:
		return nil
	default:
		return peerError("it ends the stream and has not said that it has all")
	}
}

func (v *serving) watch(ctx context.Context) error {
	return v.pulse.watch(ctx, v.over, v.urgent, v.config.Silence)
}
