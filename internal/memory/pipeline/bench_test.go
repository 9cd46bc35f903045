package pipeline

import (
	"crypto/rand"
	"testing"

	"github.com/godwit/godwit/internal/memory"
)

// discard is a lane that is always free.
type discard struct{}

func (discard) Send([]byte) error { return nil }
func (discard) Push() error       { return nil }

const benchPages = 64 << 20 / 4096

// benchSender returns a sender, and 64 MiB of random pages.
func benchSender(b *testing.B, cache int64) (*Sender, []byte) {
	key, err := NewKey()
	must(b, err)
	s, err := NewSender(SenderConfig{Key: key, CacheBytes: cache})
	must(b, err)
	b.Cleanup(s.Close)
	must(b, s.AddLane(discard{}))
	data := make([]byte, benchPages*memory.PageSize())
	_, _ = rand.Read(data)
	b.SetBytes(int64(len(data)))
	return s, data
}

func putAll(b *testing.B, s *Sender, task memory.Task, data []byte) {
	size := memory.MaxRunPages * memory.PageSize()
	for at := 0; at < len(data); at += size {
		run := memory.Run{Task: task, Address: uint64(at), Pages: memory.MaxRunPages}
		must(b, s.Put(run, data[at:at+size]))
	}
	_, err := s.Barrier(b.Context())
	must(b, err)
}

// BenchmarkSend sends pages of each kind: the cost of the pipeline without reading and without a
// connection.
func BenchmarkSend(b *testing.B) {
	b.Run("content", func(b *testing.B) {
		s, data := benchSender(b, -1)
		for b.Loop() {
			putAll(b, s, 1, data)
			b.StopTimer()
			must(b, s.Forget(1))
			b.StartTimer()
		}
	})
	b.Run("content, kept for deltas", func(b *testing.B) {
		s, data := benchSender(b, 0)
		for b.Loop() {
			putAll(b, s, 1, data)
			b.StopTimer()
			must(b, s.Forget(1))
			b.StartTimer()
		}
	})
	b.Run("unchanged", func(b *testing.B) {
		s, data := benchSender(b, 0)
		for b.Loop() {
			putAll(b, s, 1, data)
		}
	})
	b.Run("reference", func(b *testing.B) {
		s, data := benchSender(b, -1)
		putAll(b, s, 1, data)
		for b.Loop() {
			putAll(b, s, 2, data)
			b.StopTimer()
			must(b, s.Forget(2))
			b.StartTimer()
		}
	})
	b.Run("delta", func(b *testing.B) {
		s, data := benchSender(b, 0)
		for n := uint64(1); b.Loop(); n++ {
			b.StopTimer()
			for at := 0; at < len(data); at += memory.PageSize() {
				data[at+int(n*16%4096)] ^= 0xff
			}
			b.StartTimer()
			putAll(b, s, 1, data)
		}
	})
}

// BenchmarkReceive applies frames of content to a store.
func BenchmarkReceive(b *testing.B) {
	key, err := NewKey()
	must(b, err)
	store, err := memory.NewStore(1 << 30)
	must(b, err)
	b.Cleanup(func() { must(b, store.Close()) })
	data := make([]byte, benchPages*memory.PageSize())
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		b.StopTimer()
		_, _ = rand.Read(data)
		r, err := NewReceiver(ReceiverConfig{Key: key, Pages: store})
		must(b, err)
		s, err := NewSender(SenderConfig{Key: key, CacheBytes: -1})
		must(b, err)
		l := newLane(r)
		must(b, s.AddLane(l))
		b.StartTimer()
		putAll(b, s, 1, data)
		s.Close()
		close(l.frames)
	}
}
