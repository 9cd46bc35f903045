package stream

import (
	"testing"
	"time"
)

// world is what a meter cannot know: a link, and the effect of codecs on some content.
type world struct {
	link   float64 // bytes per second
	source float64 // bytes per second available to send; 0: unlimited
	codecs [codecsEnd]performance
}

// interval lets a meter see some chunks under a codec.
func (w world) interval(m *meter, codec Codec, at time.Time) (verdict, time.Time) {
	seen := w.codecs[codec]
	if codec == None {
		seen = performance{1e15, 1}
	}
	for {
		const raw = 256 << 10
		wire := int(raw * seen.ratio)
		packing := time.Duration(raw / seen.bytesPerSecond * 1e9)
		writing := time.Duration(float64(wire) / w.link * 1e9)
		took := max(packing, writing) // they overlap
		if w.source > 0 {
			took = max(took, time.Duration(raw/w.source*1e9))
		}
		at = at.Add(took)
		if codec != None {
			m.packed(codec, raw, wire, packing)
		}
		waited := time.Duration(0)
		if packing > writing {
			waited = packing - writing
		}
		if v := m.sent(wire, waited, writing, at); v.over {
			return v, at
		}
	}
}

// settle lets the codec adapt for a while.
func (w world) settle(m *meter, codec Codec, at time.Time) (Codec, time.Time) {
	for range 60 {
		var v verdict
		v, at = w.interval(m, codec, at)
		codec = m.choose(codec, v, 1)
		if v.bound || v.packed {
			if c, ok := m.tryNext(codec, 1); ok {
				m.packed(c, trialBytes, int(trialBytes*w.codecs[c].ratio),
					time.Duration(trialBytes/w.codecs[c].bytesPerSecond*1e9))
				m.tried()
			}
		}
	}
	return codec, at
}

func half() [codecsEnd]performance {
	return [codecsEnd]performance{{}, {1.9e9, 0.6}, {0.5e9, 0.52}, {0.22e9, 0.5}, {0.11e9, 0.485}}
}

// TestCodecFollows changes the link, the content and the processor while a session sends.
func TestCodecFollows(t *testing.T) {
	const mbit = 1e6 / 8
	random := [codecsEnd]performance{{}, {5e9, 1}, {3e9, 1}, {3e9, 1}, {3e9, 1}}
	busy := half()
	for i := range busy {
		busy[i].bytesPerSecond /= 10
	}
	at := time.Unix(1, 0)
	m, codec := &meter{}, S2
	for _, step := range []struct {
		what  string
		world world
		want  [2]Codec
	}{
		{"a slow link", world{link: 5 * mbit, codecs: half()}, [2]Codec{ZstdFastest, ZstdBetter}},
		{"a fast link", world{link: 20000 * mbit, codecs: half()}, [2]Codec{None, None}},
		{"1 Gbit/s", world{link: 1000 * mbit, codecs: half()}, [2]Codec{S2, ZstdDefault}},
		{"1 Gbit/s, a busy processor", world{link: 1000 * mbit, codecs: busy}, [2]Codec{None, S2}},
		{"100 Mbit/s, a busy processor", world{link: 100 * mbit, codecs: busy}, [2]Codec{S2, ZstdFastest}},
		{"content that cannot be compressed", world{link: 100 * mbit, codecs: random}, [2]Codec{None, None}},
		{"content that can again", world{link: 100 * mbit, codecs: half()}, [2]Codec{S2, ZstdBetter}},
	} {
		codec, at = step.world.settle(m, codec, at)
		if codec < step.want[0] || codec > step.want[1] {
			t.Errorf("%s: %s, want %s to %s (%+v)", step.what, codec, step.want[0], step.want[1], m.codecs)
		}
	}
	before := codec
	if codec, _ = (world{link: 1e9, source: 1e6, codecs: half()}).settle(m, codec, at); codec != before {
		t.Errorf("with little to send it went from %s to %s", before, codec)
	}
}

// TestLinkSeen checks that the estimate is exact when the link is the limit, and that a burst does not
// change it.
func TestLinkSeen(t *testing.T) {
	m, at := &meter{}, time.Unix(1, 0)
	var v verdict
	for range 10 {
		v, at = (world{link: 1e7}).interval(m, None, at)
	}
	if !v.bound || m.link < 0.95e7 || m.link > 1.05e7 {
		t.Errorf("a link of 1e7 bytes per second is taken for %.3g", m.link)
	}
	v, _ = (world{link: 1e9, source: 3e8}).interval(m, None, at)
	if v.bound || m.link > 2.1e7 {
		t.Errorf("after a burst it is taken for %.3g", m.link)
	}
}

// TestAdapt sends compressible data over a slow link without a codec, and checks that the session chooses
// one.
func TestAdapt(t *testing.T) {
	limiter := &Limiter{}
	limiter.SetRate(80e6)
	a, b := pair(t, Options{Limiter: limiter})
	changes := make(chan Codec, 64)
	a.Adapt(func(_, to Codec) { changes <- to })
	go func() { _, _ = receiveAll(b) }()
	done := make(chan error, 1)
	go func() {
		text := content(0, 1<<20)
		for i := range text {
			text[i] = "compressible "[i%13]
		}
		err := a.Begin("k", "")
		for err == nil {
			_, err = a.Write(text)
		}
		done <- err
	}()
	select {
	case to := <-changes:
		if to == None || a.LinkBitsPerSecond() < 20e6 || a.LinkBitsPerSecond() > 200e6 {
			t.Errorf("codec %s at %.0f bits per second", to, a.LinkBitsPerSecond())
		}
	case <-testContext(t).Done():
		t.Error("the codec stays")
	}
	_ = a.Close()
	<-done
}
