package testbed

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/lab"
	"github.com/godwit/godwit/internal/units"
)

// BandwidthOf and rttOf return the properties of a link of the suite, in bytes per second and seconds.
func BandwidthOf(link string) float64 {
	shape, err := ParseLink(link)
	if err != nil {
		return math.NaN()
	}
	return float64(shape.BandwidthBitsPerSecond) / 8
}

// RTTOf returns the round trip of a link, in seconds.
func RTTOf(link string) float64 {
	shape, err := ParseLink(link)
	if err != nil {
		return math.NaN()
	}
	return shape.RTT.Seconds()
}

// Links of the suite files.
const (
	LinkStudyD = "20mbit/20ms"
)

// Sent returns the bytes sent over the link since the lab was made, in both directions.
func (b *Bed) Sent() (float64, error) {
	there, back, err := b.Lab.LinkCounters(Nodes[0], Nodes[1])
	return float64(there.Bytes) + float64(back.Bytes), err
}

// Counted returns the bytes sent over the link while do runs.
func (b *Bed) Counted(do func() error) (float64, error) {
	before, err := b.Sent()
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	after, err := b.Sent()
	return after - before, err
}

// ChangeLink is setLink for links that agents know: their knowledge of the old link is useless.
func (s *Suite) ChangeLink(ctx context.Context, link string) error {
	if err := s.SetLink(link); err != nil {
		return err
	}
	for _, node := range Nodes {
		for range 2 {
			if _, err := s.Bed.Exec(ctx, node, Program, "nodes"); err != nil {
				return err
			}
		}
	}
	return nil
}

// study A's OpenFace: 140 MB, of which 22 MB are written again and again

// study A's OpenFace: 140 MB, of which 22 MB are written again and again

// The links: bandwidth in each direction, and round trip.
const (
	LinkFast     = "1gbit/0.4ms"
	LinkMiddle   = "100mbit/20ms"
	LinkDistant  = "10mbit/100ms"
	LinkFaster   = "10gbit/0.1ms"
	LinkMobility = "11.34mbit/122.95ms" // study B's, of a vehicle
	LinkSlow     = "5mbit/50ms"         // study A's slowest
)

// ParseLink reads a link such as 100mbit/20ms.
func ParseLink(name string) (lab.Link, error) {
	bandwidth, roundTrip, _ := strings.Cut(name, "/")
	bits, err := units.ParseBandwidth(bandwidth)
	if err != nil {
		return lab.Link{}, fmt.Errorf("link %q: %w", name, err)
	}
	rtt, err := time.ParseDuration(roundTrip)
	if err != nil {
		return lab.Link{}, fmt.Errorf("link %q: give bandwidth and round trip, such as 100mbit/20ms: %w",
			name, err)
	}
	return lab.Link{BandwidthBitsPerSecond: bits, RTT: rtt}, nil
}

// SetLink gives the link between the two nodes a shape such as 100mbit/20ms.
func (s *Suite) SetLink(name string) error {
	shape, err := ParseLink(name)
	if err != nil {
		return err
	}
	s.Bed.Bandwidth = float64(shape.BandwidthBitsPerSecond) / 8
	return s.Bed.Lab.SetLink(Nodes[0], Nodes[1], shape)
}
