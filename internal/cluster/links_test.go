package cluster

import (
	"testing"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/wire/stream"
)

// TestBandwidth: a transfer's result counts until probes agree that the link has changed.
func TestBandwidth(t *testing.T) {
	p, now := &measuredLink{}, time.Now()
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
	p := newLinks()
	p.open("b")
	known := p.links["b"]
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

// TestLinksOfKnownNodes: measurements of links to unknown and to removed nodes do not count.
func TestLinksOfKnownNodes(t *testing.T) {
	links := newLinks()
	note := func() {
		links.noteHello("b", 20*time.Millisecond)
		links.noteHello("b", 36*time.Millisecond)
		links.NoteLink("b", stream.Link{BandwidthBitsPerSecond: 50e6})
		links.NoteTransfer("b", 60e6, true)
		links.NoteTransport("b", stream.Transport{SentBytes: 1 << 20, ResentBytes: 1 << 18})
		links.NoteTransport("b", stream.Transport{SentBytes: leastForLoss - 1, ResentBytes: leastForLoss - 1})
		links.noteBack("b", 40e6)
		links.noteBack("b", 2*migration.MaxBandwidthLimit)
	}
	empty := func(when string) {
		t.Helper()
		rtt, bandwidth := links.Link("b")
		if rtt != 0 || bandwidth != 0 || links.WayTo("b") != (predict.Link{}) || links.wantsProbe("b", 0) {
			t.Errorf("%s: %s, %.0f bit/s, %+v", when, rtt, bandwidth, links.WayTo("b"))
		}
	}
	note()
	empty("unknown")
	links.open("b")
	if !links.wantsProbe("b", ProbeEvery) || links.wantsProbe("b", ProbeEvery) {
		t.Error("a link is measured never, or twice")
	}
	note()
	links.open("b") // again, which changes nothing
	if rtt, bandwidth := links.Link("b"); rtt != 22*time.Millisecond || bandwidth != 60e6 {
		t.Errorf("%s, %.0f bit/s", rtt, bandwidth)
	}
	way := links.WayTo("b")
	if way.JitterSeconds != 0.001 || way.Loss != 0.25 || way.BackBitsPerSecond != 40e6 {
		t.Errorf("%+v", way)
	}
	said := &api.Node{Name: "b"}
	links.describe(said)
	if said.RttSeconds != way.RTTSeconds || said.BandwidthBitsPerSecond != 60e6 || said.Loss != way.Loss {
		t.Errorf("described as %+v", said)
	}
	links.NoteLink("b", stream.Link{RTT: time.Millisecond})
	if rtt, _ := links.Link("b"); rtt != time.Millisecond {
		t.Errorf("a data connection takes %s", rtt)
	}
	links.forget("b")
	empty("removed")
}
