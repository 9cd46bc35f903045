// Package units parses and formats bandwidths, delays, loss rates, sizes and times for users. The
// command lines and the lab use it.
package units

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Unlimited is the bandwidth value that means no limit.
const Unlimited int64 = 0

// Limits of bandwidths and delays. They keep arithmetic in nanoseconds and bits well inside an int64.
const (
	MinBandwidth = 8_000           // one kilobyte per second
	MaxBandwidth = 100_000_000_000 // 100 Gbit/s
	MaxDelay     = 60 * time.Second
)

// bandwidthUnits are matched longest first.
var bandwidthUnits = []struct {
	suffix string
	factor float64
}{
	{"gbit", 1e9}, {"mbit", 1e6}, {"kbit", 1e3}, {"bit", 1},
}

// ParseBandwidth reads a bandwidth such as 100mbit, 2.5gbit, 64kbit or unlimited, in bits per second. A
// trailing /s or ps is allowed. Units are powers of 1000, as usual for networks.
func ParseBandwidth(text string) (int64, error) {
	s := strings.ToLower(strings.TrimSpace(text))
	if s == "unlimited" {
		return Unlimited, nil
	}
	if rest, found := strings.CutSuffix(s, "/s"); found {
		s = rest
	} else if rest, found := strings.CutSuffix(s, "bitps"); found {
		s = rest + "bit"
	}
	for _, unit := range bandwidthUnits {
		number, found := strings.CutSuffix(s, unit.suffix)
		if !found {
			continue
		}
		value, err := parsePlain(number)
		if err != nil {
			return 0, fmt.Errorf("bandwidth %q: %w", text, err)
		}
		bits := value * unit.factor
		if bits < MinBandwidth || bits > MaxBandwidth {
			return 0, fmt.Errorf("bandwidth %q: must be between 8kbit and 100gbit, or unlimited", text)
		}
		return int64(math.Round(bits)), nil
	}
	return 0, fmt.Errorf("bandwidth %q: give a number with a unit, such as 100mbit or 1gbit, or unlimited",
		text)
}

// FormatBandwidth writes a bandwidth as ParseBandwidth reads it.
func FormatBandwidth(bits int64) string {
	if bits == Unlimited {
		return "unlimited"
	}
	for _, unit := range bandwidthUnits {
		if float64(bits) >= unit.factor {
			return strconv.FormatFloat(float64(bits)/unit.factor, 'f', -1, 64) + unit.suffix
		}
	}
	return strconv.FormatInt(bits, 10) + "bit"
}

// ParseDelay reads a duration such as 20ms, 400us or 1.5s; 0 needs no unit.
func ParseDelay(text string) (time.Duration, error) {
	d, err := time.ParseDuration(strings.TrimSpace(text))
	if err != nil {
		return 0, fmt.Errorf("time %q: give a number with a unit, such as 20ms or 400us", text)
	}
	if d < 0 || d > MaxDelay {
		return 0, fmt.Errorf("time %q: must be between 0 and %s", text, MaxDelay)
	}
	return d, nil
}

// ParseLoss reads a share of packets lost as a percentage such as 0.5% and returns it as a ratio; 0
// needs no sign.
func ParseLoss(text string) (float64, error) {
	s := strings.TrimSpace(text)
	number, percent := strings.CutSuffix(s, "%")
	value, err := parsePlain(number)
	if err != nil {
		return 0, fmt.Errorf("loss %q: give a percentage, such as 0.5%%", text)
	}
	if !percent && value != 0 {
		return 0, fmt.Errorf("loss %q: the percent sign is missing; write %s%% if you mean that", text, s)
	}
	if value < 0 || value > 100 {
		return 0, fmt.Errorf("loss %q: must be between 0%% and 100%%", text)
	}
	return value / 100, nil
}

// ParseSize reads a number of bytes such as 512MiB, 64M or 1g (all powers of 1024) or 0.
func ParseSize(text string) (int64, error) {
	s := strings.ToLower(strings.TrimSpace(text))
	s = strings.TrimSuffix(strings.TrimSuffix(s, "b"), "i")
	shift := 0
	for i, unit := range []string{"k", "m", "g", "t"} {
		if number, found := strings.CutSuffix(s, unit); found {
			s, shift = number, 10*(i+1)
			break
		}
	}
	value, err := parsePlain(s)
	if err != nil {
		return 0, fmt.Errorf("size %q: give a number of bytes, such as 512MiB or 1GiB", text)
	}
	bytes := value * float64(int64(1)<<shift)
	if bytes > 1<<50 {
		return 0, fmt.Errorf("size %q: too large", text)
	}
	return int64(bytes), nil
}

// parsePlain reads a non-negative decimal number: no exponent, no sign, no infinity, which
// ParseFloat would take.
func parsePlain(text string) (float64, error) {
	if text == "" || strings.Trim(text, "0123456789.") != "" {
		return 0, errors.New("not a number")
	}
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, errors.New("not a number")
	}
	return value, nil
}
