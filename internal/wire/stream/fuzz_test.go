package stream

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// FuzzStream passes a session arbitrary bytes after its peer's preamble.
func FuzzStream(f *testing.F) {
	f.Add(recordsFrame(join(begin("k"), data(3, "abc"), appendEnd(nil, 3, 0x364b3fb7), appendFinal(nil, 1))))
	f.Add(giantFrame(1<<31, 1<<31))
	f.Add(join(ping(1), controlFrame(frameAbort, []byte("why"))))
	f.Add(join(train(7, 9000)...))
	compressor := &compressor{workers: 1}
	for codec := S2; codec < codecsEnd; codec++ {
		if err := compressor.prepare(codec); err != nil {
			f.Fatal(err)
		}
		payload := join(begin("k"), data(1000, string(make([]byte, 1000))), appendEnd(nil, 1000, 0x9c5cd1d4),
			appendFinal(nil, 1))
		frame, _ := compressor.compress(codec, make([]byte, headerBytes), payload)
		header{kind: frameRecords, codec: codec, wire: len(frame) - headerBytes, raw: len(payload)}.put(frame)
		f.Add(frame)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		near, far := net.Pipe()
		s, err := newSession(near, Options{Workers: 1}, false)
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, far) }()
		go func() {
			_, _ = far.Write(input)
			far.Close()
		}()
		defer s.Close()
		for {
			next, err := s.Next()
			if err != nil {
				if err != io.EOF && !errors.Is(err, ErrProtocol) && !errors.Is(err, ErrTruncated) &&
					!errors.Is(err, ErrDamaged) &&
					!errors.As(err, new(*PeerError)) {
					t.Fatalf("an error without a type: %v", err)
				}
				return
			}
			if len(next.Kind) == 0 || len(next.Kind) > MaxKind || len(next.Name) > MaxName {
				t.Fatalf("section %q %q", next.Kind, next.Name)
			}
			_, _ = io.Copy(io.Discard, next)
		}
	})
}

func FuzzParseHeader(f *testing.F) {
	f.Add(recordsFrame([]byte("x"))[:headerBytes])
	f.Add(giantFrame(1<<31, 1<<31))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headerBytes {
			return
		}
		h, err := parseHeader(b[:headerBytes])
		if err != nil {
			return
		}
		again := make([]byte, headerBytes)
		h.put(again)
		if h.wire > h.raw || h.raw > MaxFrame || !bytes.Equal(again, b[:headerBytes]) {
			t.Fatalf("% x was taken as %+v", b, h)
		}
	})
}

func FuzzParseRecord(f *testing.F) {
	f.Add(join(begin("k"), data(1, "x"), appendEnd(nil, 1, 2), appendFinal(nil, 3)))
	f.Add([]byte{byte(recordBegin), 255, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		for len(b) > 0 {
			r, rest, err := parseRecord(b)
			if err != nil {
				return
			}
			if len(rest) >= len(b) || len(r.data) > len(b) {
				t.Fatalf("%d bytes gave %+v and %d bytes", len(b), r.kind, len(rest))
			}
			b = rest
		}
	})
}

func FuzzReceivePreamble(f *testing.F) {
	f.Add(preamble(Version, `{"migration":"m","purpose":"p"}`))
	f.Add(preamble(Version, `{"refused":"no"}`))
	f.Add(preamble(2, ""))
	f.Fuzz(func(t *testing.T, b []byte) {
		var hello Hello
		var reply answer
		_ = receivePreamble(bytes.NewReader(b), &hello)
		_ = receivePreamble(bytes.NewReader(b), &reply)
	})
}

func FuzzDecompress(f *testing.F) {
	compressor := &compressor{workers: 1}
	for codec := S2; codec < codecsEnd; codec++ {
		if err := compressor.prepare(codec); err != nil {
			f.Fatal(err)
		}
		wire, _ := compressor.compress(codec, nil, content(1, 1000))
		f.Add(uint8(codec), uint32(1000), wire)
	}
	zstds, err := newDecompressor(1)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, codec uint8, length uint32, wire []byte) {
		if Codec(codec) >= codecsEnd || length > MaxFrame || len(wire) > int(length) {
			return
		}
		guarded := make([]byte, length, length+1)
		guarded = append(guarded, 0x5a)
		err := decompress(zstds, Codec(codec), guarded[:length], wire)
		if err != nil && !errors.Is(err, ErrProtocol) {
			t.Fatalf("an error without a type: %v", err)
		}
		if guarded[length] != 0x5a {
			t.Fatal("wrote past the end")
		}
	})
}

func FuzzTrains(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 1, 1}, uint8(3))
	f.Fuzz(func(t *testing.T, payload []byte, times uint8) {
		var trains trains
		for i := range int(times) {
			report, err := trains.probe(payload, time.Unix(int64(i), 0))
			if err == nil && report != nil && len(report) != headerBytes+reportBytes {
				t.Fatalf("a report of %d bytes", len(report))
			}
		}
		if len(trains.marks) > maxMarks {
			t.Fatalf("%d marks are kept", len(trains.marks))
		}
	})
}
