package cluster

import (
	"testing"
	"time"

	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/wire/stream"
)

// TestBandwidth: a transfer's result counts until probes agree that the link has changed.
func TestBandwidth(t *testing.T) {
	p, now := &peer{}, time.Now()
	probe := func(bits float64, atLeast bool) {
		p.noteProbe(stream.Link{BandwidthBitsPerSecond: bits, AtLeast: atLeast}, now)
	}
	for _, step := range []struct {
		what string
		do   func()
		want float64
	}{
		{"our own limit",
			func() { p.noteProbe(stream.Link{BandwidthBitsPerSecond: 5e6, Limited: true}, now) }, 5e6},
		{"a probe", func() { probe(60e6, false) }, 60e6},
		{"our own limits", func() {
			for range 2 * predict.Measurements {
				p.noteProbe(stream.Link{BandwidthBitsPerSecond: p.bandwidth / 3, Limited: true}, now)
			}
		}, 60e6},
		{"a transfer", func() { p.noteTransfer(95e6, true, now) }, 95e6},
		{"short probes", func() { probe(60e6, true); probe(60e6, true) }, 95e6},
		{"probes that are wrong by less than a factor",
			func() { probe(60e6, false); probe(70e6, false); probe(120e6, false) }, 95e6},
		{"a transfer that something else held back", func() { p.noteTransfer(30e6, false, now) }, 95e6},
		{"one that got more through",
			func() { p.noteTransfer(97e6, false, now); p.noteTransfer(97e6, false, now) }, 97e6},
		{"one probe of another link", func() { probe(20e6, false) }, 97e6},
		{"two of them", func() { probe(20e6, false) }, 20e6},
		{"and back", func() { probe(95e6, false); probe(95e6, false) }, 95e6},
		{"a transfer over it", func() { p.noteTransfer(96e6, true, now) }, 96e6},
		{"one that met other traffic", func() { p.noteTransfer(60e6, true, now) }, 96e6},
		{"one over another link", func() { p.noteTransfer(20e6, true, now) }, 20e6},
		{"a probe of that", func() { probe(22e6, false) }, 20e6},
	} {
		step.do()
		if p.bandwidth != step.want {
			t.Fatalf("%s: %.0f Mbit/s, want %.0f", step.what, p.bandwidth/1e6, step.want/1e6)
		}
	}
}

// TestLimitedLinkIsNotMeasured: throughput under our own limit does not count as the link's measured
// bandwidth.
func TestLimitedLinkIsNotMeasured(t *testing.T) {
	known := &peer{}
	p := &Peers{known: map[string]*peer{"b": known}}
	if way := p.WayTo("b"); way.Seen != 0 {
		t.Errorf("nothing is known, and that is %.0f s old", way.Seen)
	}
	known.noteProbe(stream.Link{BandwidthBitsPerSecond: 5e6, Limited: true}, time.Now())
	if way := p.WayTo("b"); way.Seen <= ProbeEvery.Seconds() {
		t.Errorf("a limit of ours was measured %.0f s ago", way.Seen)
	}
	known.noteProbe(stream.Link{BandwidthBitsPerSecond: 50e6}, time.Now())
	if way := p.WayTo("b"); way.Seen > 1 {
		t.Errorf("what was just measured is %.0f s old", way.Seen)
	}
}
