package engine

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParseSignal(t *testing.T) {
	for text, want := range map[string]unix.Signal{
		"": unix.SIGTERM, "SIGQUIT": unix.SIGQUIT, "quit": unix.SIGQUIT, "3": unix.SIGQUIT, "RTMIN": 34,
		"SIGRTMIN+3": 37, "rtmax-2": 62, "64": 64,
	} {
		if signal, err := ParseSignal(text); err != nil || signal != want {
			t.Errorf("%q: %v, %v, want %v", text, signal, err, want)
		}
	}
	for _, text := range []string{"0", "65", "-3", "SIG", "SIGNONE", "RTMIN+31", "RTMIN-1", "RTMAX+1",
		"RTMIN+", "TERM "} {
		if signal, err := ParseSignal(text); err == nil {
			t.Errorf("%q: %v", text, signal)
		}
	}
}

func TestStartPatience(t *testing.T) {
	check := func(h Health) *Health { return &h }
	for _, c := range []struct {
		d    Definition
		want time.Duration
	}{
		{Definition{}, time.Minute},
		{Definition{StartTimeout: 1.5}, 1500 * time.Millisecond},
		{Definition{Health: check(Health{})}, 3 * time.Minute},
		{Definition{Health: check(Health{StartPeriod: 10, Retries: 2, Interval: 5, Timeout: 1})},
			22 * time.Second},
		{Definition{Health: check(Health{Retries: 100, Interval: 3600})}, time.Hour},
		{Definition{Health: check(Health{StartPeriod: 10}), StartTimeout: 2}, 2 * time.Second},
	} {
		if have := c.d.StartPatience(); have != c.want {
			t.Errorf("%+v: %s, want %s", c.d, have, c.want)
		}
	}
}

func TestCheckHealth(t *testing.T) {
	good := Health{Command: []string{"true"}, Interval: 1, Timeout: 3600, Retries: 100}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for _, change := range []func(*Health){
		func(h *Health) { h.Command = nil }, func(h *Health) { h.Command = []string{""} },
		func(h *Health) { h.Interval = -1 },
		func(h *Health) { h.Timeout = 3601 }, func(h *Health) { h.Retries = 101 },
		func(h *Health) { h.Retries = -1 },
		func(h *Health) { h.StartPeriod = 1e300 },
	} {
		bad := good
		change(&bad)
		if bad.Check() == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}
