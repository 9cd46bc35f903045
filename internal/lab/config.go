package lab

import (
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/godwit/godwit/internal/units"
)

// DefaultName is the lab that commands use by default.
const DefaultName = "lab"

// maxNodes follows from the nodes' names, one letter each.
const maxNodes = 26

// minStateSize holds an identity, the journals and a small image.
const minStateSize = 1 << 20

// Link describes a link between two nodes, or between a client and its node. Both directions are the same.
type Link struct {
	BandwidthBitsPerSecond int64 `json:"bandwidth_bits_per_second"` // units.Unlimited for none
	// round trip, without queueing
	RTT    time.Duration `json:"rtt_nanoseconds"`
	Jitter time.Duration `json:"jitter_nanoseconds"` // the RTT varies by this much either way
	Loss   float64       `json:"loss_ratio"`         // share of packets lost in each direction
	Down   bool          `json:"down"`               // packets are dropped silently
}

// String formats the link in the words of the command line.
func (l Link) String() string {
	text := fmt.Sprintf("%s, rtt %s", units.FormatBandwidth(l.BandwidthBitsPerSecond), l.RTT)
	if l.Jitter > 0 {
		text += fmt.Sprintf(", jitter %s", l.Jitter)
	}
	if l.Loss > 0 {
		text += fmt.Sprintf(", loss %.3g%%", l.Loss*100)
	}
	if l.Down {
		text += ", down"
	}
	return text
}

func (l Link) validate() error {
	if l.BandwidthBitsPerSecond != units.Unlimited &&
		(l.BandwidthBitsPerSecond < units.MinBandwidth || l.BandwidthBitsPerSecond > units.MaxBandwidth) {
		return fmt.Errorf("link: bandwidth of %d bit/s: must be between 8kbit and 100gbit, or unlimited",
			l.BandwidthBitsPerSecond)
	}
	if l.RTT < 0 || l.RTT > units.MaxDelay {
		return fmt.Errorf("link: rtt %s: must be between 0 and %s", l.RTT, units.MaxDelay)
	}
	if l.Jitter < 0 || l.Jitter > l.RTT {
		return fmt.Errorf("link: jitter %s: must not be more than the rtt, %s", l.Jitter, l.RTT)
	}
	if !(l.Loss >= 0 && l.Loss <= 1) {
		return fmt.Errorf("link: loss %v: must be between 0 and 1", l.Loss)
	}
	return nil
}

// Config describes a lab to make.
type Config struct {
	Name           string       // DefaultName if empty
	Nodes          int          // named a, b, c…
	Link           Link         // of every pair of nodes
	StateSizeBytes int64        // 0: a directory on the machine's disk; otherwise a tmpfs of this size
	Bare           bool         // no identities, no agents
	NoCheck        bool         // skip measuring the links
	Wires          Wires        // kind of links; empty: chosen automatically
	Program        string       // the godwit program; if empty, the one beside this program or in PATH
	Helper         string       // godwit-lab, or a test program that calls RunHidden; default: this program
	AgentArgs      []string     // additional arguments of every agent
	Progress       func(string) // called with progress messages, one line each; may be nil
}

// Wires is the implementation of links.
type Wires string

// The kinds of wires. Auto uses netem if the kernel has it and the relay otherwise.
const (
	WiresAuto  Wires = ""
	WiresNetem Wires = "netem"
	WiresRelay Wires = "relay"
)

var (
	labNamePattern    = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,30}$`)
	clientNamePattern = regexp.MustCompile(`^[a-z][a-z0-9-]{1,11}$`)
)

func (c Config) validate() error {
	if err := checkLabName(c.Name); err != nil {
		return err
	}
	if c.Nodes < 1 || c.Nodes > maxNodes {
		return fmt.Errorf("a lab of %d nodes: must be between 1 and %d", c.Nodes, maxNodes)
	}
	if c.StateSizeBytes < 0 || (c.StateSizeBytes > 0 && c.StateSizeBytes < minStateSize) {
		return errors.New("state size: must be at least 1MiB, or 0 for no limit")
	}
	switch c.Wires {
	case WiresAuto, WiresNetem, WiresRelay:
	default:
		return fmt.Errorf("wires %q: must be netem or relay", c.Wires)
	}
	return c.Link.validate()
}

func checkLabName(name string) error {
	if !labNamePattern.MatchString(name) {
		return fmt.Errorf("lab name %q: use up to 31 lower-case letters, digits and dashes", name)
	}
	return nil
}

func checkClientName(name string) error {
	if !clientNamePattern.MatchString(name) {
		return fmt.Errorf("client name %q: use 2 to 12 lower-case letters, digits and dashes, a letter first",
			name)
	}
	return nil
}

// nodeName returns the name of the node with this number, counted from 1.
func nodeName(number int) string { return string(rune('a' + number - 1)) }
