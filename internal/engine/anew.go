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

// ErrUnhealthy says that a container that was started did not become healthy.
var ErrUnhealthy = errors.New("container did not become healthy")

// Anew is what an engine does for a container that moves without its processes: they end here, and
// others are started elsewhere from the same files.
type Anew interface {
	// ExamineAnew lists what stands against this running container being started anew on another
	// node. It changes nothing.
	ExamineAnew(ctx context.Context, id string) ([]Problem, error)
	// Ports are those on which a running container waits for connections and datagrams. A copy of
	// it has to wait on the same ones to be taken for healthy, if there is no health check.
	Ports(ctx context.Context, id string) ([]Port, error)
	// Halt ends a running container by its own stop signal, and kills it when its grace is over:
	// all of its connections have been accepted before, if they were within a moment, and what it
	// has said has been delivered when Halt returns, within another one. It returns the instant of
	// the signal. The container is Frozen then, also after a crash of the agent or the machine,
	// until Revive or Destroy, and Container.Leaving tells of leave.
	Halt(ctx context.Context, id string, leave Leave) (time.Time, error)
	// Halted tells whether Halt has ended a container that Revive is to start again. One that was
	// told to end and has not is ended first.
	Halted(ctx context.Context, id string) (bool, error)
	// Revive starts again what Halt has ended, and waits, for a moment at most, until it is
	// healthy. It changes nothing that Halt has not ended. What was said of its health is no error:
	// it runs again.
	Revive(ctx context.Context, id string) (health string, err error)
	// ReserveAnew is Reserve for a container that will be started here.
	ReserveAnew(ctx context.Context, definition Definition) ([]Problem, error)
	// PrepareStart is PrepareRestore for a container that will be started here: no state comes, and
	// ImagesDir is of no use. Its Restore starts the container and waits until it is healthy before
	// it calls beforeResume. It runs on probation until that has returned and is recorded durably; if
	// it is not healthy in time (ErrUnhealthy), or beforeResume fails, it has been killed when
	// Restore returns. Arrived ends one that runs on probation for an agent that is gone.
	PrepareStart(ctx context.Context, definition Definition, netns string, ports []Port) (Arrival, error)
}

// Port is one on which a container waits.
type Port struct {
	Protocol string `json:"protocol"` // tcp or udp
	Number   uint16 `json:"number"`
}

// String as users write it.
func (p Port) String() string { return p.Protocol + " " + strconv.Itoa(int(p.Number)) }

// ComparePorts is an order of ports.
func ComparePorts(a, b Port) int {
	return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Number, b.Number))
}

// SettledAfter is how long a container has to run that was started anew and has neither a health
// check nor ports.
const SettledAfter = 3 * time.Second

// Health is how it is found out whether a container does what it is for. Times are in seconds; 0 is
// the default.
type Health struct {
	Command  []string `json:"command"` // exit code 0: healthy
	Interval float64  `json:"interval_seconds,omitempty"`
	Timeout  float64  `json:"timeout_seconds,omitempty"` // of one check
	Retries  int      `json:"retries,omitempty"`         // checks that have to fail one after the other
	// StartPeriod is how long the container may take until failures count.
	StartPeriod float64 `json:"start_period_seconds,omitempty"`
}

// Defaults and bounds of how containers are stopped and started. Those of checks are Docker's.
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

// Check refuses what makes no sense.
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

// CheckLifeTimeout refuses seconds that no container is given to start or to stop in. Zero is the default.
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

// StartPatience is how long the container may take to become healthy after it was started: what was
// said for it, or, if it has a health check, until that has failed as often as counts, or a minute.
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

// StopPatience is how long the container has to end after it was told to.
func (d Definition) StopPatience() time.Duration {
	return cmp.Or(seconds(d.StopTimeout), DefaultStopTimeout)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// The range of real-time signals in the numbers that programs know (signal(7)): the C library keeps
// two for itself.
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
