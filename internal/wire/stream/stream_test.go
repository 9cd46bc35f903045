package stream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/await"
)

func someSections() []section {
	all := []section{{"layer", "big", content(1, 3<<20+17)}, {"file", "", nil},
		{"file", strings.Repeat("n", MaxName), []byte("x")}}
	for i := range 300 {
		all = append(all, section{"image", "core.img", content(uint64(i), i*7)})
	}
	return append(all, section{"memory", "pages", make([]byte, 2<<20)},
		section{"memory", "end", content(9, minChunk)})
}

func checkSections(t *testing.T, got, want []section) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %d sections, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i].kind != want[i].kind || got[i].name != want[i].name ||
			!bytes.Equal(got[i].data, want[i].data) {
			t.Fatalf("section %d (%s %.10s): differs", i, want[i].kind, want[i].name)
		}
	}
}

func TestSectionsArriveWithEveryCodec(t *testing.T) {
	for codec := None; codec < codecsEnd; codec++ {
		t.Run(codec.String(), func(t *testing.T) {
			a, b := pair(t, Options{Codec: codec})
			want := someSections()
			sent := make(chan error, 1)
			go func() { sent <- sendAll(a, want) }()
			got, err := receiveAll(b)
			if err != nil {
				t.Fatal(err)
			}
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
			checkSections(t, got, want)
			checkCounters(t, a.Counters(), b.Counters(), codec)
			if !a.FinalMayHaveLeft() {
				t.Error("the final marker has left, but FinalMayHaveLeft says no")
			}
		})
	}
}

func checkCounters(t *testing.T, a, b Counters, codec Codec) {
	t.Helper()
	if a.Sent["layer"].RawBytes != 3<<20+17 || a.Sent["memory"].RawBytes != 2<<20+minChunk {
		t.Errorf("sent %+v", a.Sent)
	}
	var sent, received uint64
	for kind, count := range a.Sent {
		if b.Received[kind].RawBytes != count.RawBytes {
			t.Errorf("kind %s: sent %d, received %d", kind, count.RawBytes, b.Received[kind].RawBytes)
		}
		sent, received = sent+count.WireBytes, received+b.Received[kind].WireBytes
	}
	if sent != a.SentWireBytes || received != b.ReceivedWireBytes || sent != received {
		t.Errorf("wire bytes by kind: sent %d of %d, received %d of %d", sent, a.SentWireBytes, received,
			b.ReceivedWireBytes)
	}
	if zeros := a.Sent["memory"]; codec != None && zeros.WireBytes > zeros.RawBytes/4 {
		t.Errorf("2 MiB of zeros took %d bytes", zeros.WireBytes)
	}
}

func TestBothDirectionsAtOnceWithChangingCodecs(t *testing.T) {
	a, b := pair(t, Options{})
	want := someSections()
	results := make(chan error, 2)
	for _, s := range []*Session{a, b} {
		go func() { results <- sendAll(s, want) }()
		go func() {
			for i := range 200 {
				if s.SetCodec(Codec(i%int(codecsEnd))) != nil {
					return
				}
			}
		}()
	}
	received := make(chan error, 1)
	var fromB []section
	go func() {
		var err error
		fromB, err = receiveAll(a)
		received <- err
	}()
	fromA, err := receiveAll(b)
	if err = errors.Join(err, <-received, <-results, <-results); err != nil {
		t.Fatal(err)
	}
	checkSections(t, fromA, want)
	checkSections(t, fromB, want)
}

func TestSkippedSectionsAndOldReaders(t *testing.T) {
	a, b := pair(t, Options{})
	go func() { _ = sendAll(a, []section{{"x", "1", content(1, 1<<20)}, {"x", "2", []byte("two")}}) }()
	first, err := b.Next()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(first, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	second, err := b.Next()
	if err != nil || second.Name != "2" {
		t.Fatalf("got %q, %v", second.Name, err)
	}
	if _, err := first.Read(make([]byte, 1)); !errors.Is(err, ErrNoSection) {
		t.Errorf("reading a section that is over: %v", err)
	}
	var out bytes.Buffer
	if _, err := io.Copy(&out, second); err != nil || out.String() != "two" {
		t.Fatalf("got %q, %v", out.String(), err)
	}
	for range 2 {
		if _, err := b.Next(); err != io.EOF {
			t.Fatalf("after the final marker: %v", err)
		}
	}
}

func TestFlushSendsWhatThereIs(t *testing.T) {
	a, b := pair(t, Options{Codec: ZstdDefault})
	if err := a.Begin("image", "pages-1.img"); err != nil {
		t.Fatal(err)
	}
	section := make(chan Section, 1)
	go func() {
		next, _ := b.Next()
		section <- next
	}()
	for i := range 20 {
		part := content(uint64(i), 1000)
		if _, err := a.Write(part); err != nil {
			t.Fatal(err)
		}
		if err := a.Flush(); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			section <- <-section
		}
		next := <-section
		got := make([]byte, len(part))
		if _, err := io.ReadFull(next, got); err != nil || !bytes.Equal(got, part) {
			t.Fatalf("part %d: %v", i, err)
		}
		section <- next
	}
}

func TestWrongOrderOfCalls(t *testing.T) {
	a, _ := pair(t, Options{})
	_, writeErr := a.Write([]byte("x"))
	for what, err := range map[string]error{"write": writeErr, "end": a.End()} {
		if !errors.Is(err, ErrNoSection) {
			t.Errorf("%s outside a section: %v", what, err)
		}
	}
	if err := a.Begin("k", "n"); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{"begin": a.Begin("k", "m"), "finish": a.Finish()} {
		if !errors.Is(err, ErrNoSection) {
			t.Errorf("%s inside a section: %v", what, err)
		}
	}
	if a.Begin("", "n") == nil || a.Begin(strings.Repeat("k", MaxKind+1), "") == nil ||
		a.Begin("k", strings.Repeat("n", MaxName+1)) == nil {
		t.Error("a section with a kind or name out of bounds began")
	}
	if a.FinalMayHaveLeft() {
		t.Error("the final marker may have left before Finish")
	}
}

func TestAbortTellsThePeer(t *testing.T) {
	a, b := pair(t, Options{})
	if err := b.Abort("disk is full"); err != nil {
		t.Fatal(err)
	}
	var peer *PeerError
	if _, err := a.Next(); !errors.As(err, &peer) || peer.Reason != "disk is full" {
		t.Errorf("reader: %v", err)
	}
	if err := sendAll(a, someSections()); !errors.As(err, &peer) {
		t.Errorf("writer: %v", err)
	}
	if a.FinalMayHaveLeft() {
		t.Error("the final marker may have left a session that the peer ended")
	}
	// the peer may close first
	if _, err := b.Next(); !errors.Is(err, ErrClosed) && !errors.Is(err, ErrTruncated) {
		t.Errorf("the side that aborted: %v", err)
	}
}

func TestCloseReleasesABlockedWriter(t *testing.T) {
	a, _ := pair(t, Options{}) // nobody reads
	written := make(chan error, 1)
	go func() { written <- sendAll(a, []section{{"x", "", make([]byte, 64<<20)}}) }()
	last, since := uint64(0), time.Now()
	await.True(t, "a full connection", func() bool {
		if now := a.Counters().SentWireBytes; now != last {
			last, since = now, time.Now()
		}
		return last > 0 && time.Since(since) > 20*time.Millisecond
	})
	a.Close()
	if err := <-written; !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
}

// TestFinalStaysBehindContent ends a session in the middle of a frame that has the marker behind other
// content.
func TestFinalStaysBehindContent(t *testing.T) {
	limiter := &Limiter{}
	limiter.SetRate(8000) // 1000 bytes per second: the frame would take 40 seconds
	a, _ := pair(t, Options{Limiter: limiter})
	sent := make(chan error, 1)
	go func() { sent <- sendAll(a, []section{{"x", "", content(1, 40<<10)}}) }()
	await.True(t, "the first bytes", func() bool { return a.Counters().SentWireBytes > 0 })
	a.Close()
	if err := <-sent; !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
	if a.FinalMayHaveLeft() {
		t.Error("the final marker may have left before the content that its frame begins with")
	}
}

func TestRefusalReachesThePeer(t *testing.T) {
	a, b := pipe(t)
	refusal := errors.New("no such migration")
	answered := make(chan error, 1)
	go func() {
		_, hello, err := Answer(testContext(t), b, func(Hello) error { return refusal }, Options{})
		if hello.Purpose != "switchover" {
			err = errors.New("purpose got lost")
		}
		answered <- err
	}()
	_, err := Open(testContext(t), a, Hello{Migration: "m", Purpose: "switchover"}, Options{})
	var peer *PeerError
	if !errors.As(err, &peer) || peer.Reason != refusal.Error() {
		t.Errorf("open: %v", err)
	}
	if err := <-answered; !errors.Is(err, refusal) {
		t.Errorf("answer: %v", err)
	}
}

func TestOpenEndsWithItsContext(t *testing.T) {
	a, _ := pipe(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Open(ctx, a, Hello{}, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestLimiterHoldsTheRateAndCanChange(t *testing.T) {
	limiter := &Limiter{}
	limiter.SetRate(8000) // 1000 bytes per second: 1 MiB would take 17 minutes
	a, b := pair(t, Options{Limiter: limiter})
	sent := make(chan error, 1)
	go func() { sent <- sendAll(a, []section{{"x", "", content(1, 1<<20)}}) }()
	await.True(t, "the first bytes", func() bool { return a.Counters().SentWireBytes > 0 })
	if count := a.Counters().SentWireBytes; count > 2*limitedPiece+minBurst {
		t.Errorf("%d bytes left at 1000 bytes per second", count)
	}
	a.SetRate(0)
	if _, err := receiveAll(b); err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}

func TestLimiterArithmetic(t *testing.T) {
	for _, bits := range []float64{8e3, 64e3, 1e6, 8e6, 1e9, 40e9} {
		// waiting callers are woken up this much too late
		for _, late := range []time.Duration{0, 60 * time.Millisecond} {
			l := &Limiter{}
			l.SetRate(bits)
			const seconds = 20
			start, now, taken := l.last, l.last, 0
			for now.Sub(start) < seconds*time.Second {
				wait, _ := l.reserve(l.piece(), false, now)
				if wait == 0 {
					taken += l.piece()
				} else {
					now = now.Add(wait + late)
				}
			}
			if rate := float64(taken*8) / seconds / bits; rate < 0.95 || rate > 1.1 {
				t.Errorf("%.0f bits per second passed, want %.0f (woken up %s too late)", rate*bits, bits,
					late)
			}
			if piece := float64(l.piece()*8) / bits; piece > 0.02 && l.piece() > leastPiece {
				t.Errorf("at %.0f bits per second %d bytes leave at once", bits, l.piece())
			}
		}
	}
}

// TestUrgentDoesNotWaitBesideBulk shares a limit between bulk data and requested pages, in simulated time.
func TestUrgentDoesNotWaitBesideBulk(t *testing.T) {
	const bits, seconds, page, everyMilliseconds = 2e6, 20, 4096, 50 // a third of the limit
	l := &Limiter{}
	l.SetRate(bits)
	now := l.last
	taken := 0
	var bulkAt time.Time
	for millisecond := range seconds * 1000 {
		now = now.Add(time.Millisecond)
		if millisecond%everyMilliseconds == 0 {
			if wait, _ := l.reserve(page, true, now); wait > 0 {
				t.Fatalf("a page had to wait for %s", wait)
			}
			taken += page
		}
		if now.Before(bulkAt) {
			continue
		}
		piece := l.piece()
		wait, _ := l.reserve(piece, false, now)
		if wait == 0 {
			taken += piece
		}
		bulkAt = now.Add(wait)
	}
	if rate := float64(taken*8) / seconds / bits; rate < 0.95 || rate > 1.1 {
		t.Errorf("%.0f bits per second passed, want %.0f", rate*bits, float64(bits))
	}
	for taken = 0; taken < 10<<20; taken += page {
		if wait, _ := l.reserve(page, true, now); wait > 0 {
			break
		}
	}
	if taken > 2*leastDebt {
		t.Errorf("%d bytes left at once because they were urgent", taken)
	}
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		bandwidth float64
		cores     int
		want      []Codec
	}{
		{0, 2, []Codec{S2}},
		{5e6, 2, []Codec{ZstdDefault, ZstdBetter}},
		{100e6, 2, []Codec{ZstdDefault, ZstdBetter}},
		{1e9, 2, []Codec{ZstdFastest, ZstdDefault}},
		{10e9, 1, []Codec{S2}},
		{10e9, 2, []Codec{S2}},
		{100e9, 2, []Codec{None}},
	} {
		got := Choose(c.bandwidth, c.cores)
		if !slices.Contains(c.want, got.Codec) || got.Why == "" {
			t.Errorf("%.0g bit/s, %d cores: %s (%s), want one of %v", c.bandwidth, c.cores, got.Codec,
				got.Why, c.want)
		}
	}
}

func TestPoliteNeedsAConnectionThatCanBePaced(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	go func() {
		var hello Hello
		if receivePreamble(b, &hello) == nil {
			_ = sendPreamble(b, answer{})
		}
	}()
	if _, err := Open(testContext(t), a, Hello{}, Options{Polite: true}); err == nil ||
		!strings.Contains(err.Error(), "paced") {
		t.Errorf("a polite stream over a pipe: %v", err)
	}
}
