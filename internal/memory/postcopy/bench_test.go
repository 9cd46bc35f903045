package postcopy

import (
	"context"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/memory"
)

// quick is a source and a target that only copy.
type quick struct {
	maps   []memory.TaskMap
	page   []byte
	left   atomic.Int64
	full   chan struct{}
	faults chan memory.RemoteFault
	came   chan uint64 // requested addresses, once they have arrived
	want   atomic.Uint64
	here   []atomic.Bool
}

func newQuick(pages int) *quick {
	q := &quick{maps: flat(pages), page: make([]byte, 1<<20), full: make(chan struct{}),
		faults: make(chan memory.RemoteFault, 1), came: make(chan uint64, 1)}
	q.left.Store(int64(pages))
	q.here = make([]atomic.Bool, pages)
	random := rand.NewChaCha8([32]byte{})
	_, _ = random.Read(q.page)
	return q
}

func (q *quick) Read(_ memory.Task, _ uint64, buffer []byte) error {
	copy(buffer, q.page)
	return nil
}

func (q *quick) Missing() []memory.TaskMap { return q.maps }

func (q *quick) Next(ctx context.Context) (memory.RemoteFault, error) {
	select {
	case w := <-q.faults:
		return w, nil
	case <-q.full:
		return memory.RemoteFault{}, io.EOF
	case <-ctx.Done():
		return memory.RemoteFault{}, ctx.Err()
	}
}

func (q *quick) Put(run memory.Run, data []byte) error {
	copy(q.page, data)
	for i := range uint64(run.Pages) {
		q.here[run.Address/uint64(memory.PageSize())+i].Store(true)
	}
	if w := q.want.Load(); w >= run.Address && w < run.Address+uint64(run.Pages)*uint64(memory.PageSize()) {
		q.want.Store(1 << 63)
		q.came <- w
	}
	if q.left.Add(-int64(run.Pages)) == 0 {
		close(q.full)
	}
	return nil
}

func (q *quick) GiveUp(context.Context, bool) error { return nil }
func (q *quick) Close() error                       { return nil }

// BenchmarkPush sends 1 GiB over loopback: both ends, without encryption and compression.
func BenchmarkPush(b *testing.B) {
	const pages = 1 << 18
	b.SetBytes(pages * int64(memory.PageSize()))
	for b.Loop() {
		q := newQuick(pages)
		q.want.Store(1 << 63)
		drainQuick(b, q)
	}
}

func drainQuick(b *testing.B, q *quick) {
	server, err := NewServer(ServerConfig{Pages: q, Remote: q.maps})
	must(b, err)
	client, err := NewClient(ClientConfig{Pages: q})
	must(b, err)
	source, target := both(context.Background(), server, client, link(b))
	must(b, source)
	must(b, target)
}

// BenchmarkFault requests pages one after the other while all others are pushed over loopback at full
// speed.
func BenchmarkFault(b *testing.B) {
	var took []time.Duration
	for b.Loop() {
		const pages = 1 << 18
		q := newQuick(pages)
		q.want.Store(1 << 63)
		var asking sync.WaitGroup
		asking.Go(func() {
			random := rand.New(rand.NewPCG(1, 1))
			for q.left.Load() > pages/4 {
				page := random.IntN(pages)
				address := uint64(page) * uint64(memory.PageSize())
				start := time.Now()
				q.want.Store(address)
				if q.here[page].Load() {
					q.want.Store(1 << 63)
					select {
					case <-q.came: // at this very moment
					default:
					}
					continue
				}
				q.faults <- memory.RemoteFault{Task: 1, Address: address}
				<-q.came
				took = append(took, time.Since(start))
				time.Sleep(time.Millisecond)
			}
		})
		drainQuick(b, q)
		asking.Wait()
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "median-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(float64(len(took)), "wants")
}
