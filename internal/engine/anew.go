package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrUnhealthy means that a started container did not become healthy.
var ErrUnhealthy = errors.New("container did not become healthy")

// Anew is the part of an engine that moves a container without its processes: they end here, and new
// processes start elsewhere from the same files.
type Anew interface {
	// ExamineAnew lists obstacles to starting this running container anew on another node. It changes
	// nothing.
	ExamineAnew(ctx context.Context, id string) ([]Problem, error)
	// Ports are those on which a running container waits for connections and datagrams. Without a health
	// check, a copy of the container is healthy when it waits on the same ports.
	Ports(ctx context.Context, id string) ([]Port, error)
	// Halt ends a running container by its own stop signal, and kills it when its grace period is over.
	// Before that, all of its connections have been accepted, within a moment, and its output has been
	// delivered when Halt returns, within another moment. Halt returns the instant of the signal. The
	// container is then Frozen, even after a crash of the agent or the machine, until Revive or Destroy,
	// and Container.Leaving is leave.
	Halt(ctx context.Context, id string, leave Leave) (time.Time, error)
	// Halted reports whether Halt has ended a container that Revive should start again. It first ends a
	// container that was told to end and has not.
	Halted(ctx context.Context, id string) (bool, error)
	// Revive restarts a container that Halt has ended, and waits, for a moment at most, until it is
	// healthy. It changes nothing that Halt has not ended. A failed health check is not an error: the
	// container runs again.
	Revive(ctx context.Context, id string) (health string, err error)
	// ReserveAnew is Reserve for a container that will be started here.
	ReserveAnew(ctx context.Context, definition Definition) ([]Problem, error)
	// PrepareStart is PrepareRestore for a container that will be started here: no state comes, and
	// ImagesDir is unused. Its Restore starts the container and waits until it is healthy before it calls
	// beforeResume. The container runs on probation until beforeResume has returned and the fact is
	// recorded durably. If the container is not healthy in time (ErrUnhealthy), or beforeResume fails,
	// Restore kills it before it returns. Arrived ends a container that runs on probation for an agent that
	// is gone.
	PrepareStart(ctx context.Context, definition Definition, netns string, ports []Port) (Arrival, error)
}

// Port is a port on which a container waits.
type Port struct {
	Protocol string `json:"protocol"` // tcp or udp
	Number   uint16 `json:"number"`
}

// String formats the port as users write it.
func (p Port) String() string { return p.Protocol + " " + strconv.Itoa(int(p.Number)) }

// ComparePorts orders ports.
func ComparePorts(a, b Port) int {
	return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Number, b.Number))
}

// SettledAfter is how long a newly started container has to run if it has neither a health check nor ports.
const SettledAfter = 3 * time.Second

// Health describes a container's health check. Times are in seconds; 0 is the default.
type Health struct {
	Command  []string `json:"command"` // exit code 0: healthy
	Interval float64  `json:"interval_seconds,omitempty"`
	Timeout  float64  `json:"timeout_seconds,omitempty"` // of one check
	Retries  int      `json:"retries,omitempty"`         // consecutive failures
	// StartPeriod is how long the container may take until failures count.
	StartPeriod float64 `json:"start_period_seconds,omitempty"`
}

// Defaults and bounds for stopping and starting containers. Those of checks are Docker's.
const (
	DefaultStopSignal     = "SIGTERM"
	DefaultStopTimeout    = 10 * time.Second
	DefaultStartTimeout   = time.Minute // of containers without a health check
	DefaultHealthInterval = 30 * time.Second
	DefaultHealthTimeout  = 30 * time.Second
	DefaultHealthRetries  = 3
	MaxLifeTimeout        = time.Hour // of any of these times
	MaxHealthRetries      = 100
)

// Check refuses invalid values.
func (h Health) Check() error {
	if len(h.Command) == 0 || h.Command[0] == "" {
		return errors.New("a health check without a command")
	}
	for what, seconds := range map[string]float64{"interval": h.Interval, "timeout": h.Timeout,
		"start period": h.StartPeriod} {
		if err := CheckLifeTimeout(seconds); err != nil {
			return fmt.Errorf("%s of health checks: %w", what, err)
		}
	}
	if h.Retries < 0 || h.Retries > MaxHealthRetries {
		return fmt.Errorf("%d retries of health checks: must be from 1 to %d", h.Retries, MaxHealthRetries)
	}
	return nil
}

// CheckLifeTimeout refuses an invalid start or stop timeout in seconds. Zero is the default.
func CheckLifeTimeout(seconds float64) error {
	if seconds >= 0 && seconds <= MaxLifeTimeout.Seconds() {
		return nil
	}
	return fmt.Errorf("%g seconds: must be more than 0 and at most %s", seconds, MaxLifeTimeout)
}

// Complete fills in the defaults.
func (h Health) Complete() Health {
	h.Interval = cmp.Or(h.Interval, DefaultHealthInterval.Seconds())
	h.Timeout = cmp.Or(h.Timeout, DefaultHealthTimeout.Seconds())
	h.Retries = cmp.Or(h.Retries, DefaultHealthRetries)
	return h
}

// StartPatience returns how long the container may take to become healthy after its start: its own timeout,
// or, if it has a health check, until the check has failed often enough to count, or a minute.
func (d Definition) StartPatience() time.Duration {
	switch {
	case d.StartTimeout > 0:
		return seconds(d.StartTimeout)
	case d.Health != nil:
		h := d.Health.Complete()
		return min(seconds(h.StartPeriod+float64(h.Retries)*(h.Interval+h.Timeout)), MaxLifeTimeout)
	}
	return DefaultStartTimeout
}

// StopPatience returns how long the container may take to end after its stop signal.
func (d Definition) StopPatience() time.Duration {
	return cmp.Or(seconds(d.StopTimeout), DefaultStopTimeout)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// The range of real-time signals in the numbers that programs know (signal(7)): the C library reserves two.
const (
	realTimeMin = 34
	realTimeMax = 64
)

// ParseSignal finds a signal by its name, with or without SIG, or its number. Empty is SIGTERM.
func ParseSignal(text string) (unix.Signal, error) {
	name := strings.TrimPrefix(strings.ToUpper(cmp.Or(text, DefaultStopSignal)), "SIG")
	if number, err := strconv.Atoi(name); err == nil && number > 0 && number <= realTimeMax {
		return unix.Signal(number), nil
	}
	if number := unix.SignalNum("SIG" + name); number != 0 {
		return number, nil
	}
	for prefix, base := range map[string]int{"RTMIN": realTimeMin, "RTMAX": realTimeMax} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			offset, err := strconv.Atoi(cmp.Or(rest, "0"))
			if number := base + offset; err == nil && number >= realTimeMin && number <= realTimeMax {
				return unix.Signal(number), nil
			}
		}
	}
	return 0, fmt.Errorf("no such signal: %.40q", text)
}

// DescribePorts lists ports for people.
func DescribePorts(ports []Port) string {
	texts := make([]string, len(ports))
	for i, port := range slices.SortedFunc(slices.Values(ports), ComparePorts) {
		texts[i] = port.String()
	}
	return strings.Join(texts, ", ")
}
