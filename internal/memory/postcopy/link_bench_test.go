package postcopy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

// far is two nodes at the ends of an emulated link.
type far struct {
	lab            *lab.Lab
	source, target *identity.Identity
	listener       *wire.Listener
}

func newFar(b *testing.B, link lab.Link) *far {
	b.Helper()
	l, err := lab.Up(b.Context(), lab.Config{
		Name: fmt.Sprintf("drain-%d-%d-%d", os.Getpid(), link.BandwidthBitsPerSecond/1e6,
			link.RTT/time.Millisecond),
		Nodes: 2, Bare: true, NoCheck: true, Link: link,
		Program: os.Args[0], // there are no agents
	})
	must(b, err)
	b.Cleanup(func() { must(b, l.Down()) })
	f := &far{lab: l}
	f.source, _, err = identity.Init(identity.InitOptions{
		State: b.TempDir(), Name: "a", Address: "127.0.0.1", Pool: netip.MustParsePrefix("10.88.0.0/16"),
	})
	must(b, err)
	server, err := identity.NewServer(f.source,
		func() []identity.Node { return []identity.Node{f.source.Node} }, nil)
	must(b, err)
	cluster, err := wire.Listen(b.Context(), "127.0.0.1:0",
		wire.ListenOptions{Identity: f.source, Server: server})
	must(b, err)
	b.Cleanup(func() { cluster.Close() })
	authority, err := f.source.Authority()
	must(b, err)
	token, err := authority.IssueToken(0, "")
	must(b, err)
	f.target, _, err = identity.Join(b.Context(), identity.JoinOptions{
		State: b.TempDir(), Server: cluster.Addr().String(), Token: token.String(), Name: "b",
		Address: "127.0.0.1:1",
	})
	must(b, err)
	address, err := l.Address("b")
	must(b, err)
	must(b, l.InNetwork("b", func() (err error) {
		f.listener, err = wire.Listen(b.Context(), address.String()+":0",
			wire.ListenOptions{Identity: f.target})
		return err
	}))
	b.Cleanup(func() { f.listener.Close() })
	return f
}

// connect opens a session from the source to the target.
func (f *far) connect(b *testing.B, o stream.Options) (*stream.Session, *stream.Session) {
	b.Helper()
	var conn *wire.Conn
	must(b, f.lab.InNetwork("a", func() (err error) {
		conn, err = wire.Dial(b.Context(), f.source, f.listener.Addr().String(), "b")
		return err
	}))
	in, err := f.listener.AcceptData(b.Context())
	must(b, err)
	answered := make(chan *stream.Session, 1)
	go func() {
		session, _, err := stream.Answer(context.Background(), in, func(stream.Hello) error { return nil },
			stream.Options{})
		if err != nil {
			b.Error(err)
		}
		answered <- session
	}()
	out, err := stream.Open(b.Context(), conn, stream.Hello{}, o)
	must(b, err)
	back := <-answered
	b.Cleanup(func() { out.Close(); back.Close() })
	return out, back
}

// program is a container whose threads touch pages.
type program struct {
	*quick
	mu     sync.Mutex
	wake   map[uint64]chan struct{} // channels of threads that wait for a page
	came   []bool
	wanted chan memory.RemoteFault
	took   []time.Duration
}

func newProgram(pages int) *program {
	return &program{quick: newQuick(pages), wake: map[uint64]chan struct{}{}, came: make([]bool, pages),
		wanted: make(chan memory.RemoteFault, 1024)}
}

func (p *program) Next(ctx context.Context) (memory.RemoteFault, error) {
	select {
	case w := <-p.wanted:
		return w, nil
	default:
	}
	p.quick.faults = p.wanted
	return p.quick.Next(ctx)
}

func (p *program) Put(run memory.Run, data []byte) error {
	p.mu.Lock()
	for i := range uint64(run.Pages) {
		number := run.Address/uint64(memory.PageSize()) + i
		p.came[number] = true
		if w := p.wake[number]; w != nil {
			close(w)
			delete(p.wake, number)
		}
	}
	p.mu.Unlock()
	p.quick.want.Store(1 << 63)
	return p.quick.Put(run, data)
}

// touch waits for a page as a thread does.
func (p *program) touch(page int) {
	p.mu.Lock()
	if p.came[page] {
		p.mu.Unlock()
		return
	}
	w := p.wake[uint64(page)]
	if w == nil {
		w = make(chan struct{})
		p.wake[uint64(page)] = w
		p.wanted <- at(page)
	}
	p.mu.Unlock()
	start := time.Now()
	<-w
	p.mu.Lock()
	p.took = append(p.took, time.Since(start))
	p.mu.Unlock()
}

func (p *program) over() bool { return p.left.Load() <= 0 }

// scan goes through the memory at 1 GB/s, as far as pages are there.
func (p *program) scan() {
	for page := len(p.came) / 3; page < len(p.came) && !p.over(); page++ {
		p.touch(page)
		if page%256 == 255 {
			time.Sleep(time.Millisecond)
		}
	}
}

// jump touches random pages, and works for a while on each.
func (p *program) jump(seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	for !p.over() {
		p.touch(random.IntN(len(p.came)))
		time.Sleep(time.Millisecond)
	}
}

// BenchmarkLink drains 10 s of a link's bandwidth while a program scans its memory, or four threads jump in
// it.
func BenchmarkLink(b *testing.B) {
	for _, link := range []lab.Link{
		{BandwidthBitsPerSecond: 1_000_000_000, RTT: 400 * time.Microsecond},
		{BandwidthBitsPerSecond: 100_000_000, RTT: 20 * time.Millisecond},
		{BandwidthBitsPerSecond: 100_000_000, RTT: 100 * time.Millisecond},
		{BandwidthBitsPerSecond: 10_000_000, RTT: 100 * time.Millisecond},
	} {
		b.Run(link.String(), func(b *testing.B) {
			f := newFar(b, link)
			for _, way := range []struct {
				name   string
				polite bool
				jump   bool
			}{{"scan", true, false}, {"jump", true, true}, {"jump, push not polite", false, true}} {
				b.Run(way.name, func(b *testing.B) {
					for b.Loop() {
						f.measure(b, link, way.polite, way.jump)
					}
				})
			}
		})
	}
}

func (f *far) measure(b *testing.B, link lab.Link, polite, jump bool) {
	rate := float64(link.BandwidthBitsPerSecond)
	p := newProgram(int(rate / 8 * 10 / float64(memory.PageSize())))
	var l linked
	l.sourceUrgent, l.targetUrgent = f.connect(b, stream.Options{})
	o := stream.Options{}
	if polite {
		o = stream.Options{Polite: true, ExpectedBitsPerSecond: rate}
	}
	l.sourcePush, l.targetPush = f.connect(b, o)
	server, err := NewServer(ServerConfig{Pages: p, Remote: p.maps})
	must(b, err)
	client, err := NewClient(ClientConfig{Pages: p})
	must(b, err)
	var threads sync.WaitGroup
	if jump {
		for i := range uint64(4) {
			threads.Go(func() { p.jump(i) })
		}
	} else {
		threads.Go(p.scan)
	}
	source, target := both(context.Background(), server, client, l)
	must(b, source)
	must(b, target)
	threads.Wait()
	slices.Sort(p.took)
	quantile := func(q float64) float64 { return p.took[int(q*float64(len(p.took)-1))].Seconds() * 1000 }
	bytes := float64(len(p.came)) * float64(memory.PageSize())
	b.ReportMetric(bytes*8/server.Stats().Elapsed.Seconds()/rate*100, "%link")
	b.ReportMetric(quantile(0.5), "p50ms")
	b.ReportMetric(quantile(0.99), "p99ms")
	b.ReportMetric(quantile(1), "maxms")
	b.ReportMetric(float64(len(p.took)), "waits")
	b.ReportMetric(float64(len(p.took))/(bytes/(1<<30)), "waits/GiB")
	b.ReportMetric(0, "ns/op")
}
