package stream

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"
)

func preamble(version uint16, body string) []byte {
	out := binary.BigEndian.AppendUint16(magic(), version)
	return append(binary.BigEndian.AppendUint16(out, uint16(len(body))), body...)
}

func TestBadPreambles(t *testing.T) {
	var version *VersionError
	for what, c := range map[string]struct {
		bytes []byte
		check func(error) bool
	}{
		"newer version": {preamble(Version+1, "whatever"), func(err error) bool {
			return errors.As(err, &version) && version.Theirs == Version+1 && version.Ours == Version
		}},
		"garbage":   {[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), isError(ErrProtocol)},
		"giant":     {preamble(Version, strings.Repeat(" ", maxHello+1)), isError(ErrProtocol)},
		"no JSON":   {preamble(Version, "}{"), isError(ErrProtocol)},
		"truncated": {preamble(Version, `{"migration":"m"}`)[:15], isError(ErrTruncated)},
		"nothing":   {nil, isError(ErrTruncated)},
	} {
		t.Run(what, func(t *testing.T) {
			for _, dial := range []bool{true, false} {
				a, b := pipe(t)
				_, _ = b.Write(c.bytes)
				_ = b.(*net.TCPConn).CloseWrite()
				var err error
				if dial {
					_, err = Open(testContext(t), a, Hello{}, Options{})
				} else {
					_, _, err = Answer(testContext(t), a, func(Hello) error { t.Error("asked"); return nil },
						Options{})
				}
				if !c.check(err) {
					t.Errorf("dialling %v: %v", dial, err)
				}
			}
		})
	}
}

func isError(want error) func(error) bool {
	return func(err error) bool { return errors.Is(err, want) }
}

func TestOtherVersionIsToldToBothSides(t *testing.T) {
	a, b := pipe(t)
	go func() { _, _, _ = Answer(testContext(t), b, func(Hello) error { return nil }, Options{}) }()
	if _, err := a.Write(preamble(Version+5, "{}")); err != nil {
		t.Fatal(err)
	}
	head := make([]byte, 12)
	if _, err := io.ReadFull(a, head); err != nil || binary.BigEndian.Uint16(head[8:]) != Version {
		t.Errorf("the peer was told % x, %v", head, err)
	}
}

func giantFrame(wire, raw uint32) []byte {
	frame := make([]byte, headerBytes)
	frame[0], frame[1] = byte(frameRecords), byte(S2)
	binary.BigEndian.PutUint32(frame[4:], wire)
	binary.BigEndian.PutUint32(frame[8:], raw)
	return frame
}

func begin(kind string) []byte { return appendBegin(nil, kind, "n") }

func data(length uint32, bytes string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{byte(recordData)}, length), bytes...)
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func TestHostileFrames(t *testing.T) {
	zeros := make([]byte, headerBytes)
	compressor := &compressor{workers: 1}
	bomb, _ := compressor.compress(S2, make([]byte, headerBytes), make([]byte, MaxFrame))
	header{kind: frameRecords, codec: S2, wire: len(bomb) - headerBytes, raw: 100_000}.put(bomb)
	bad := recordsFrame([]byte("not compressed"))
	bad[1], bad[7] = byte(ZstdFastest), bad[7]-1
	bad = bad[:len(bad)-1]
	var kinds []byte
	for i := range maxKinds + 1 {
		kinds = append(kinds, join(begin(strings.Repeat("k", 1+i%MaxKind)+string(rune('a'+i/MaxKind))),
			appendEnd(nil, 0, 0))...)
	}
	for what, c := range map[string]struct {
		bytes []byte
		want  error
	}{
		"zeros":                    {zeros, ErrProtocol},
		"text":                     {[]byte("HTTP/1.1 400 Bad Request\r\n"), ErrProtocol},
		"unknown codec":            {join([]byte{1, 99}, zeros), ErrProtocol},
		"4 GiB on the wire":        {giantFrame(1<<32-1, 1<<32-1), ErrProtocol},
		"4 GiB raw":                {giantFrame(10, 1<<32-1), ErrProtocol},
		"one byte too much":        {giantFrame(10, MaxFrame+1), ErrProtocol},
		"wire larger than raw":     {giantFrame(11, 10), ErrProtocol},
		"empty frame":              {giantFrame(0, 0), ErrProtocol},
		"more inside than it says": {bomb, ErrProtocol},
		"not compressed":           {bad, ErrProtocol},
		"giant control frame": {join([]byte{byte(framePing), 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0xff,
			0xff}), ErrProtocol},
		"short ping":               {controlFrame(framePing, []byte("x")), ErrProtocol},
		"short pong":               {controlFrame(framePong, []byte("x")), ErrProtocol},
		"short probe":              {controlFrame(frameProbe, []byte("x")), ErrProtocol},
		"data outside a section":   {recordsFrame(data(1, "x")), ErrProtocol},
		"end outside a section":    {recordsFrame(appendEnd(nil, 0, 0)), ErrProtocol},
		"section in a section":     {recordsFrame(join(begin("k"), begin("k"))), ErrProtocol},
		"final in a section":       {recordsFrame(join(begin("k"), appendFinal(nil, 1))), ErrProtocol},
		"bytes after the final":    {recordsFrame(join(appendFinal(nil, 0), begin("k"))), ErrProtocol},
		"record larger than frame": {recordsFrame(join(begin("k"), data(1<<31, "x"))), ErrProtocol},
		"kind larger than frame":   {recordsFrame([]byte{byte(recordBegin), 200, 0, 0, 'x'}), ErrProtocol},
		"no kind":                  {recordsFrame([]byte{byte(recordBegin), 0, 0, 1, 'x'}), ErrProtocol},
		"unknown record":           {recordsFrame([]byte{77}), ErrProtocol},
		"too many kinds":           {recordsFrame(kinds), ErrProtocol},
		"section of 2^63 bytes": {recordsFrame(join(begin("k"), data(1, "x"), appendEnd(nil, 1<<63, 0))),
			ErrDamaged},
		"wrong sum": {recordsFrame(join(begin("k"), data(1, "x"), appendEnd(nil, 1, 0))),
			ErrDamaged},
		"2^63 sections":             {recordsFrame(appendFinal(nil, 1<<63)), ErrDamaged},
		"end between frames":        {nil, ErrTruncated},
		"end in a header":           {recordsFrame([]byte("x"))[:5], ErrTruncated},
		"end in a payload":          {recordsFrame(make([]byte, 100))[:50], ErrTruncated},
		"end in a section":          {recordsFrame(join(begin("k"), data(1, "x"))), ErrTruncated},
		"end before the final mark": {recordsFrame(join(begin("k"), appendEnd(nil, 0, 0))), ErrTruncated},
	} {
		t.Run(what, func(t *testing.T) {
			s, peer := raw(t, Options{})
			_, _ = peer.Write(c.bytes)
			if c.want == ErrTruncated {
				peer.Close()
			}
			if _, err := receiveAll(s); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if _, err := s.Next(); err == nil || err == io.EOF {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

// TestPeerIsToldOfItsBreach checks that a peer that breaks the protocol, perhaps by a mistake of ours,
// learns how.
func TestPeerIsToldOfItsBreach(t *testing.T) {
	s, peer := raw(t, Options{})
	if _, err := peer.Write(giantFrame(1<<31, 1<<31)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(); !errors.Is(err, ErrProtocol) {
		t.Fatal(err)
	}
	got, _ := io.ReadAll(peer)
	if len(got) < headerBytes || frameType(got[0]) != frameAbort ||
		!bytes.Contains(got, []byte("announces")) {
		t.Errorf("the peer was told %q", got)
	}
	if err := sendAll(s, someSections()); !errors.Is(err, ErrProtocol) {
		t.Errorf("writing after it: %v", err)
	}
}

func TestStalledPeer(t *testing.T) {
	s, peer := raw(t, Options{StallTimeout: 30 * time.Millisecond})
	if _, err := peer.Write(recordsFrame(make([]byte, 100))[:50]); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(); !errors.Is(err, ErrStalled) {
		t.Errorf("got %v", err)
	}
}

// TestSilenceBetweenFramesIsAllowed checks that a source may wait for its container as long as it must.
func TestSilenceBetweenFramesIsAllowed(t *testing.T) {
	s, peer := raw(t, Options{StallTimeout: time.Millisecond})
	result := make(chan error, 1)
	go func() { _, err := receiveAll(s); result <- err }()
	select {
	case err := <-result:
		t.Fatalf("ended by itself: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if _, err := peer.Write(recordsFrame(appendFinal(nil, 0))); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// TestMemoryIsBounded checks that a peer that sends without end fills only a few frames if nobody reads.
func TestMemoryIsBounded(t *testing.T) {
	s, peer := raw(t, Options{Workers: 2})
	compressor := &compressor{workers: 1}
	payload := join(begin("k"), data(MaxFrame-100, string(make([]byte, MaxFrame-100))))
	frame, _ := compressor.compress(S2, make([]byte, headerBytes), payload)
	header{kind: frameRecords, codec: S2, wire: len(frame) - headerBytes, raw: len(payload)}.put(frame)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	_ = peer.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	for {
		if _, err := peer.Write(frame); err != nil {
			break
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > (readAhead+2)*2*MaxFrame {
		t.Errorf("the session holds %d bytes", grown)
	}
	if s.Counters().ReceivedWireBytes == 0 {
		t.Error("nothing was received")
	}
}

func TestPingFloodIsAnsweredOrDropped(t *testing.T) {
	s, peer := raw(t, Options{})
	go func() { _, _ = s.Next() }()
	for range 20_000 { // the peer never reads its answers
		_ = peer.SetWriteDeadline(time.Now().Add(5 * time.Second))
		if _, err := peer.Write(ping(1)); err != nil {
			t.Fatalf("the session stopped reading: %v", err)
		}
	}
}

func TestPongsThatNobodyAskedForAreIgnored(t *testing.T) {
	s, peer := raw(t, Options{})
	for number := range uint64(100) {
		payload := make([]byte, pongBytes)
		binary.BigEndian.PutUint64(payload, number)
		if _, err := peer.Write(join(controlFrame(framePong, payload),
			controlFrame(frameReport, payload[:reportBytes]))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := peer.Write(recordsFrame(appendFinal(nil, 0))); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(); err != io.EOF {
		t.Error(err)
	}
}
