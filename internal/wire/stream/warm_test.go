package stream

import (
	"net"
	"testing"
	"time"
)

func TestWarmMeasures(t *testing.T) {
	a, b := pair(t, Options{})
	go func() { _, _ = b.Next() }()
	link, err := a.Warm(testContext(t), Budget{})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", link)
	if link.Limited || link.RTT <= 0 || link.SentBytes < firstTrain || link.SentBytes > warmBytes {
		t.Errorf("got %+v", link)
	}
	if link.Clock.Ahead.Abs() > link.Clock.Error {
		t.Errorf("one clock differs from itself by %s, known to %s", link.Clock.Ahead, link.Clock.Error)
	}
}

// telling is a connection that reports the size of its window.
type telling struct {
	net.Conn
	window int64
}

func (c telling) Transport() (Transport, error) { return Transport{WindowBytes: c.window}, nil }

// TestWarmEnough checks that nothing more is sent once the window holds what is to be sent, and only then.
func TestWarmEnough(t *testing.T) {
	const window = 64 << 10
	from, to := pipe(t)
	a, b := pairOver(t, telling{from, window}, to, Options{})
	go func() { _, _ = b.Next() }()
	for enough, sends := range map[int64]bool{window: false, window + 1: true} {
		link, err := a.Warm(testContext(t), Budget{Enough: enough})
		if err != nil {
			t.Fatal(err)
		}
		if link.WindowBytes != window || link.RTT <= 0 || (link.SentBytes > 0) != sends {
			t.Errorf("%d bytes are to be sent: got %+v", enough, link)
		}
	}
}

// TestWarmOpensTheRest checks that Warm waits for one train, and then sends what the window lacks without
// waiting: as much as is to be sent, or as the link holds if that is less.
func TestWarmOpensTheRest(t *testing.T) {
	const window, first = 16 << 10, 16<<10*9/10 - ahead
	for name, c := range map[string]struct {
		enough int64
		bits   float64
		limit  float64
		want   int
	}{
		"all of it":                      {Little, 1e15, 0, first + Little - window},
		"the window holds nearly all":    {window + window/20, 1e15, 0, first},
		"the link holds no more":         {Little, 1, 0, first},
		"no more is allowed to be there": {Little, 1e15, 1e7, first},
	} {
		from, to := pipe(t)
		a, b := pairOver(t, telling{from, window}, to, Options{})
		go func() { _, _ = b.Next() }()
		a.SetRate(c.limit)
		link, err := a.Warm(testContext(t), Budget{Enough: c.enough, BitsPerSecond: c.bits})
		if err != nil {
			t.Fatal(err)
		}
		if link.SentBytes != c.want || link.RTT <= 0 {
			t.Errorf("%s: got %+v, want %d bytes sent", name, link, c.want)
		}
		// An answer that nobody waited for does not reach the next caller.
		if next, err := a.Warm(testContext(t), Budget{Enough: window}); err != nil || next.SentBytes != 0 {
			t.Errorf("%s: then %+v, %v", name, next, err)
		}
	}
}

// TestWarmMeasuresALimitedLink measures the rate of a limiter. A busy machine wakes up late, and then sends
// at once what could have left meanwhile. That spoils one measurement, but not thirty.
func TestWarmMeasuresALimitedLink(t *testing.T) {
	var measured float64
	for range 30 {
		limiter := &Limiter{}
		limiter.SetRate(80e6) // 10 MB/s
		a, b := pair(t, Options{Limiter: limiter})
		go func() { _, _ = b.Next() }()
		link, err := a.Warm(testContext(t), Budget{})
		if err != nil {
			t.Fatal(err)
		}
		if measured = link.BandwidthBitsPerSecond; measured > 60e6 && measured < 400e6 {
			if !link.Limited {
				t.Errorf("a limit is taken for the link: %+v", link)
			}
			return
		}
	}
	t.Errorf("a link of 80 Mbit/s was measured as %.0f Mbit/s", measured/1e6)
}

func TestRateOfATrain(t *testing.T) {
	start := time.Unix(1, 0)
	// a bucket lets the first half through at once
	marks := []mark{{1000, start}, {1000, start}, {1000, start}}
	for i := range 4 {
		marks = append(marks, mark{1000, start.Add(time.Duration(i+1) * time.Millisecond)})
	}
	if bytes, took := rate(marks); bytes != 3000 || took != 3*time.Millisecond {
		t.Errorf("%d bytes in %s, want 3000 in 3ms", bytes, took)
	}
	if bytes, took := rate(marks[:1]); bytes != 0 || took != 0 {
		t.Errorf("one mark has the rate %d in %s", bytes, took)
	}
}

func TestBelievable(t *testing.T) {
	if got := believable(250e3, 20*time.Millisecond); got != 200e6 {
		t.Errorf("250 kB in 20 ms are at most %.0f Mbit/s", got/1e6)
	}
	if got := believable(250e3, -time.Microsecond); got < 1e15 {
		t.Errorf("a train that took no longer than a round trip has at most %.0f bit/s", got)
	}
}

func TestEstimateOffset(t *testing.T) {
	const ms = int64(time.Millisecond)
	sample := func(ahead, there, back int64) Sample {
		return Sample{Sent: 0, Received: there + ahead, Answered: there + ahead + ms,
			Returned: there + ms + back}
	}
	for _, ahead := range []int64{0, 5 * ms, -3600 * 1000 * ms} {
		samples := []Sample{sample(ahead, 80*ms, 2*ms), sample(ahead, 10*ms, 12*ms),
			sample(ahead, 3*ms, 200*ms)}
		got, err := EstimateOffset(samples)
		if err != nil {
			t.Fatal(err)
		}
		if wrong := got.Ahead - time.Duration(ahead); wrong.Abs() > got.Error ||
			got.Error > 12*time.Millisecond {
			t.Errorf("ahead by %s: got %s, known to %s", time.Duration(ahead), got.Ahead, got.Error)
		}
		if local := got.ToLocal(time.Unix(0, ahead)); local.UnixNano() < -12*ms || local.UnixNano() > 12*ms {
			t.Errorf("the peer's %s is %s here", time.Unix(0, ahead), local)
		}
	}
	if _, err := EstimateOffset([]Sample{{Sent: 10, Received: 0, Answered: 100, Returned: 20}}); err == nil {
		t.Error("a sample with a negative round trip was used")
	}
}
