package wire

import (
	"io"
	"math/rand/v2"
	"testing"

	"github.com/godwit/godwit/internal/wire/stream"
)

// halfCompressible makes content like much of a server's memory.
func halfCompressible(size int) []byte {
	random := rand.New(rand.NewPCG(1, 1))
	b := make([]byte, size)
	for i := 0; i < size; i += 64 {
		for j := i; j < i+32; j++ {
			b[j] = byte(random.Uint32())
		}
	}
	return b
}

// BenchmarkStream sends bulk data over loopback, TLS and all.
func BenchmarkStream(b *testing.B) {
	first := firstNode(b, "a", nil)
	second := first.join(b, "b")
	part := halfCompressible(4 << 20)
	for _, codec := range []stream.Codec{stream.None, stream.S2, stream.ZstdFastest, stream.ZstdDefault,
		stream.ZstdBetter} {
		b.Run(codec.String(), func(b *testing.B) {
			sender, receiver := sessions(b, second, first, codec)
			received := make(chan error, 1)
			go func() {
				next, err := receiver.Next()
				if err == nil {
					_, err = io.Copy(io.Discard, next)
				}
				received <- err
			}()
			if err := sender.Begin("pages", ""); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(part)))
			for b.Loop() {
				if _, err := sender.Write(part); err != nil {
					b.Fatal(err)
				}
			}
			if err := sender.End(); err != nil {
				b.Fatal(err)
			}
			if err := sender.Finish(); err != nil {
				b.Fatal(err)
			}
			if err := <-received; err != nil {
				b.Fatal(err)
			}
			count := sender.Counters().Sent["pages"]
			b.ReportMetric(float64(count.WireBytes)/float64(count.RawBytes), "wire/raw")
		})
	}
}

// BenchmarkSmallSection measures the way there and back of a section that is flushed.
func BenchmarkSmallSection(b *testing.B) {
	first := firstNode(b, "a", nil)
	second := first.join(b, "b")
	sender, receiver := sessions(b, second, first, stream.S2)
	go func() {
		for {
			next, err := receiver.Next()
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, next)
			_ = receiver.Begin("ack", "")
			_ = receiver.End()
			_ = receiver.Flush()
		}
	}()
	part := halfCompressible(4096)
	for b.Loop() {
		_ = sender.Begin("image", "core.img")
		_, _ = sender.Write(part)
		_ = sender.End()
		if err := sender.Flush(); err != nil {
			b.Fatal(err)
		}
		if _, err := sender.Next(); err != nil {
			b.Fatal(err)
		}
	}
}

func sessions(b *testing.B, from, to *testNode, codec stream.Codec) (*stream.Session, *stream.Session) {
	b.Helper()
	out, in := connect(b, from, to)
	answered := make(chan *stream.Session, 1)
	go func() {
		session, _, err := stream.Answer(testContext(b), in, func(stream.Hello) error { return nil },
			stream.Options{})
		if err != nil {
			b.Error(err)
		}
		answered <- session
	}()
	session, err := stream.Open(testContext(b), out, stream.Hello{}, stream.Options{Codec: codec})
	if err != nil {
		b.Fatal(err)
	}
	return session, <-answered
}
