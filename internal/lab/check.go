package lab

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/godwit/godwit/internal/units"
)

// Tolerances of a link's properties.
const (
	bandwidthTolerance = 0.10
	rttTolerance       = time.Millisecond
	slowestChecked     = 250_000
	checkedBandwidth   = 500_000_000 // above this the measurement is shown, but nothing is promised
)

// The parts of a measurement.
const (
	checkPings     = 9
	checkMeasure   = 400 * time.Millisecond // or until checkSegments have come
	checkSegments  = 40
	checkLongest   = 4 * time.Second
	checkPingBytes = 53 + ethernetHeader // one byte in TCP with time stamps
	checkTimeout   = 15 * time.Second
	checkAttempts  = 3
	checkSegment   = 1448 // payload of a TCP segment with time stamps in 1500 bytes
	parallelBudget = 150_000_000
	bothWaysAtOnce = 100_000_000
)

// Checked is the measurement of a link.
type Checked struct {
	BandwidthThere int64         `json:"bandwidth_there_bits_per_second"` // on the wire, from A to B
	BandwidthBack  int64         `json:"bandwidth_back_bits_per_second"`
	RTT            time.Duration `json:"rtt_nanoseconds"` // the minimum of a few
	OK             bool          `json:"ok"`
	Problems       []string      `json:"problems,omitempty"`
}

// String formats the measurement for a person.
func (c Checked) String() string {
	var parts []string
	if c.BandwidthThere > 0 {
		parts = append(parts, fmt.Sprintf("%.4g and %.4g Mbit/s", float64(c.BandwidthThere)/1e6,
			float64(c.BandwidthBack)/1e6))
	}
	parts = append(parts, fmt.Sprintf("rtt %.2f ms", c.RTT.Seconds()*1e3))
	text := strings.Join(parts, ", ")
	if !c.OK {
		text += "; this machine cannot do what was asked: " + strings.Join(c.Problems, "; ")
	}
	return text
}

// CheckLink measures a link between two nodes. A link that differs from its settings is not an error but
// Checked.OK false.
func (l *Lab) CheckLink(ctx context.Context, a, b string) (Checked, error) {
	s, err := loadState(l.name)
	if err != nil {
		return Checked{}, err
	}
	w, err := s.wire(a, b)
	if err != nil {
		return Checked{}, err
	}
	return meter{l}.measure(ctx, s, w)
}

// meter measures the links of a lab.
type meter struct{ lab *Lab }

// checkAll measures all links between nodes, slow ones in parallel.
func (m meter) checkAll(ctx context.Context, report func(string)) error {
	s, err := loadState(m.lab.name)
	if err != nil {
		return err
	}
	group, groupContext := errgroup.WithContext(ctx)
	group.SetLimit(parallelChecks(s))
	results := make([]Checked, len(s.Links))
	for i, w := range s.Links {
		group.Go(func() error {
			results[i], err = m.measure(groupContext, s, w)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return m.lab.update(func(s *state) error {
		for i, w := range s.Links {
			w.Check = &results[i]
			report(fmt.Sprintf("link %s-%s: measured %s", w.A, w.B, results[i]))
		}
		return nil
	})
}

func parallelChecks(s *state) int {
	most := int64(1)
	for _, w := range s.Links {
		if b := w.Link.BandwidthBitsPerSecond; b != units.Unlimited {
			most = max(most, b)
		} else {
			return 1
		}
	}
	return int(min(max(parallelBudget/most, 1), 16))
}

func (m meter) measure(ctx context.Context, s *state, w *wire) (Checked, error) {
	var c Checked
	if w.Link.Down {
		return c, fmt.Errorf("link %s-%s is down", w.A, w.B)
	}
	a, err := s.machine(w.A)
	if err != nil {
		return c, err
	}
	b, err := s.machine(w.B)
	if err != nil {
		return c, err
	}
	// Other work on the machine may spoil a measurement; a wrong link is wrong every time.
	for range checkAttempts {
		if c, err = m.measureOnce(ctx, a, b, w.Link); err != nil {
			return c, fmt.Errorf("measure link %s-%s: %w", w.A, w.B, err)
		}
		if c.OK {
			break
		}
	}
	return c, nil
}

func (m meter) measureOnce(ctx context.Context, a, b *machine, asked Link) (Checked, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	var c Checked
	var err error
	if c.RTT, err = m.measureRTT(ctx, a, b); err != nil {
		return c, err
	}
	if rateMeasurable(asked) {
		if err := m.measureBoth(ctx, a, b, asked, &c); err != nil {
			return c, err
		}
	}
	c.judge(asked)
	return c, nil
}

// rateMeasurable reports whether a short transfer by TCP shows the rate of a link: it does not if packets
// are lost, and on a very slow link it would not be short.
func rateMeasurable(l Link) bool {
	return l.Loss == 0 && (l.BandwidthBitsPerSecond == units.Unlimited ||
		l.BandwidthBitsPerSecond >= slowestChecked)
}

// judge compares the measurement with the settings.
func (c *Checked) judge(asked Link) {
	expected := asked.RTT + 2*wireTime(asked, checkPingBytes)
	if off := (c.RTT - expected).Abs(); off > rttTolerance+asked.Jitter {
		c.Problems = append(c.Problems,
			fmt.Sprintf("the rtt is %s, not %s", c.RTT.Round(10*time.Microsecond), expected))
	}
	bandwidth := asked.BandwidthBitsPerSecond
	if bandwidth != units.Unlimited && bandwidth <= checkedBandwidth && rateMeasurable(asked) {
		for _, measured := range []int64{c.BandwidthThere, c.BandwidthBack} {
			if math.Abs(float64(measured)/float64(bandwidth)-1) > bandwidthTolerance {
				c.Problems = append(c.Problems, fmt.Sprintf("the bandwidth is %.4g Mbit/s, not %.4g",
					float64(measured)/1e6, float64(bandwidth)/1e6))
			}
		}
	}
	c.OK = len(c.Problems) == 0
}

// wireTime returns how long a link is busy with this many bytes.
func wireTime(asked Link, bytes int) time.Duration {
	if asked.BandwidthBitsPerSecond == units.Unlimited {
		return 0
	}
	return time.Duration(float64(bytes) * 8e9 / float64(asked.BandwidthBitsPerSecond))
}

// measureBoth measures the rate in both directions, in parallel if the machine is fast enough for that.
func (m meter) measureBoth(ctx context.Context, a, b *machine, asked Link, c *Checked) error {
	group, groupContext := errgroup.WithContext(ctx)
	if asked.BandwidthBitsPerSecond == units.Unlimited || asked.BandwidthBitsPerSecond > bothWaysAtOnce {
		group.SetLimit(1)
	}
	group.Go(func() (err error) {
		c.BandwidthThere, err = m.measureRate(groupContext, a, b, asked)
		return err
	})
	group.Go(func() (err error) {
		c.BandwidthBack, err = m.measureRate(groupContext, b, a, asked)
		return err
	})
	return group.Wait()
}
