package wire

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/wire/stream"
)

// TestMain lets the test program act as a lab's.
func TestMain(m *testing.M) {
	lab.RunHidden()
	os.Exit(m.Run())
}

const pageBytes = 4096

func mbit(n int64) int64 { return n * 1_000_000 }

// besideLinks are the links on which urgent requests are made beside bulk data.
func besideLinks() []lab.Link {
	return []lab.Link{
		{BandwidthBitsPerSecond: mbit(1000), RTT: 400 * time.Microsecond},
		{BandwidthBitsPerSecond: mbit(100), RTT: 20 * time.Millisecond},
		{BandwidthBitsPerSecond: mbit(100), RTT: 100 * time.Millisecond},
		{BandwidthBitsPerSecond: mbit(10), RTT: 100 * time.Millisecond},
		{BandwidthBitsPerSecond: mbit(10), RTT: 100 * time.Millisecond, Loss: 0.01},
		{BandwidthBitsPerSecond: mbit(5), RTT: 50 * time.Millisecond},
	}
}

// beside is two nodes at the ends of a link.
type beside struct {
	lab      *lab.Lab
	link     lab.Link
	from, to *testNode
	listener *Listener
}

func newBeside(b *testing.B, link lab.Link) *beside {
	b.Helper()
	l, err := lab.Up(b.Context(), lab.Config{
		Name: fmt.Sprintf("beside-%d-%d", os.Getpid(), link.BandwidthBitsPerSecond/1_000_000), Nodes: 2,
		Bare: true, NoCheck: true, Link: link,
		Program: os.Args[0], // there are no agents
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := l.Down(); err != nil {
			b.Error(err)
		}
	})
	n := &beside{lab: l, link: link, from: firstNode(b, "a", nil)}
	n.to = n.from.join(b, "b")
	address, err := l.Address("b")
	if err != nil {
		b.Fatal(err)
	}
	err = l.InNetwork("b", func() (err error) {
		n.listener, err = Listen(b.Context(), address.String()+":0", ListenOptions{Identity: n.to.id})
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { n.listener.Close() })
	return n
}

// connect opens a session from a to b.
func (n *beside) connect(b *testing.B, o stream.Options) (*stream.Session, *stream.Session) {
	b.Helper()
	var conn *Conn
	err := n.lab.InNetwork("a", func() (err error) {
		conn, err = Dial(b.Context(), n.from.id, n.listener.Addr().String(), "b")
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	in, err := n.listener.AcceptData(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	answered := make(chan *stream.Session, 1)
	go func() {
		session, _, err := stream.Answer(b.Context(), in, func(stream.Hello) error { return nil },
			stream.Options{})
		if err != nil {
			b.Error(err)
		}
		answered <- session
	}()
	out, err := stream.Open(b.Context(), conn, stream.Hello{}, o)
	if err != nil {
		b.Fatal(err)
	}
	back := <-answered
	b.Cleanup(func() { out.Close(); back.Close() })
	return out, back
}

// bulk sends until ctx ends.
func bulk(ctx context.Context, s *stream.Session) {
	part := make([]byte, 1<<20)
	_, _ = rand.Read(part)
	for ctx.Err() == nil {
		n := len(part)
		if batch := s.Batch(); batch > 0 {
			n = min(n, batch)
		}
		if s.Begin("pages", "") != nil {
			return
		}
		if _, err := s.Write(part[:n]); err != nil {
			return
		}
		if s.End() != nil || s.Flush() != nil {
			return
		}
	}
}

func discard(s *stream.Session) {
	for {
		next, err := s.Next()
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, next); err != nil {
			return
		}
	}
}

// serve answers each request with a page.
func serve(s *stream.Session) {
	page := make([]byte, pageBytes)
	_, _ = rand.Read(page)
	for {
		next, err := s.Next()
		if err != nil {
			return
		}
		question, err := io.ReadAll(next)
		if err != nil {
			return
		}
		for len(question) >= 16 {
			copy(page, question[:16])
			question = question[16:]
			if s.Begin("page", "") != nil {
				return
			}
			if _, err := s.Write(page); err != nil {
				return
			}
			if s.End() != nil || s.Flush() != nil {
				return
			}
		}
	}
}

// asker sends requests at random moments and records how long answers take.
type asker struct {
	mu    sync.Mutex
	asked map[uint64]time.Time
	took  []time.Duration
}

func (a *asker) ask(ctx context.Context, s *stream.Session, mean time.Duration) {
	for number := uint64(0); ; number++ {
		timer := time.NewTimer(time.Duration(mathrand.ExpFloat64() * float64(mean)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		question := make([]byte, 16)
		binary.BigEndian.PutUint64(question, number)
		a.mu.Lock()
		a.asked[number] = time.Now()
		a.mu.Unlock()
		if s.Begin("want", "") != nil {
			return
		}
		if _, err := s.Write(question); err != nil {
			return
		}
		if s.End() != nil || s.Flush() != nil {
			return
		}
	}
}

func (a *asker) receive(s *stream.Session) {
	for {
		next, err := s.Next()
		if err != nil {
			return
		}
		page, err := io.ReadAll(next)
		if err != nil || len(page) != pageBytes {
			return
		}
		now := time.Now()
		a.mu.Lock()
		number := binary.BigEndian.Uint64(page)
		a.took = append(a.took, now.Sub(a.asked[number]))
		delete(a.asked, number)
		a.mu.Unlock()
	}
}

// BenchmarkBeside measures the latency of urgent requests beside bulk data, and the bulk's share of the
// link. Requests have 16 bytes; answers are a page and travel in the direction of the bulk. The answers
// take a twentieth of the link's capacity, and come at random.
func BenchmarkBeside(b *testing.B) {
	for _, link := range besideLinks() {
		b.Run(link.String(), func(b *testing.B) {
			n := newBeside(b, link)
			all := float64(link.BandwidthBitsPerSecond)
			for _, way := range []struct {
				name    string
				idle    bool
				options stream.Options
			}{
				{name: "no bulk", idle: true},
				{name: "bulk"},
				{name: "polite", options: stream.Options{Polite: true, ExpectedBitsPerSecond: all}},
				{name: "polite, nothing expected", options: stream.Options{Polite: true}},
			} {
				b.Run(way.name, func(b *testing.B) {
					for b.Loop() {
						n.measure(b, way.idle, way.options)
					}
				})
			}
		})
	}
}

const (
	besideWarm     = 2 * time.Second // before the measurement
	besideDuration = 8 * time.Second
)

func (n *beside) measure(b *testing.B, idle bool, o stream.Options) {
	urgentOut, urgentIn := n.connect(b, stream.Options{})
	pushOut, pushIn := n.connect(b, o)
	ctx, cancel := context.WithTimeout(b.Context(), besideWarm+besideDuration)
	defer cancel()
	var all sync.WaitGroup
	all.Go(func() { discard(pushIn) })
	if !idle {
		all.Go(func() { bulk(ctx, pushOut) })
	}
	all.Go(func() { serve(urgentOut) })
	a := &asker{asked: map[uint64]time.Time{}}
	all.Go(func() { a.receive(urgentIn) })
	mean := max(2*time.Millisecond,
		time.Duration(pageBytes*8/(0.05*float64(n.link.BandwidthBitsPerSecond))*1e9))
	all.Go(func() { a.ask(ctx, urgentIn, mean) })
	<-time.After(besideWarm)
	start := pushIn.Counters().ReceivedWireBytes
	begin := time.Now()
	a.mu.Lock()
	a.took = nil
	a.mu.Unlock()
	<-ctx.Done()
	goodput := float64(pushIn.Counters().ReceivedWireBytes-start) * 8 / time.Since(begin).Seconds()
	for _, s := range []*stream.Session{urgentOut, urgentIn, pushOut, pushIn} {
		s.Close()
	}
	all.Wait()
	slices.Sort(a.took)
	if len(a.took) == 0 {
		b.Fatal("no answers")
	}
	at := func(q float64) float64 { return a.took[int(q*float64(len(a.took)-1))].Seconds() * 1000 }
	b.ReportMetric(goodput/float64(n.link.BandwidthBitsPerSecond)*100, "%link")
	b.ReportMetric(at(0.5), "p50ms")
	b.ReportMetric(at(0.99), "p99ms")
	b.ReportMetric(at(1), "maxms")
	b.ReportMetric(float64(len(a.took)), "answers")
	b.ReportMetric(0, "ns/op")
}
