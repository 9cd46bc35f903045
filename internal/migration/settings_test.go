package migration

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestSettings(t *testing.T) {
	got, err := Settings{}.Complete()
	if err != nil || got.DowntimeTarget != DefaultDowntimeTarget || got.OnNoConvergence != StopAndCopy {
		t.Errorf("defaults: %+v, %v", got, err)
	}
	for _, good := range []Settings{
		{DowntimeTarget: time.Microsecond, MaxRounds: 1, BandwidthLimit: 8e3, OnNoConvergence: Throttle},
		{DowntimeTarget: time.Hour, MaxRounds: 1000, BandwidthLimit: 1e13, OnNoConvergence: GiveUp,
			Timeout: time.Minute},
	} {
		if got, err := good.Complete(); err != nil || got != good {
			t.Errorf("%+v becomes %+v, %v", good, got, err)
		}
	}
	for want, bad := range map[string]Settings{
		"downtime target": {DowntimeTarget: -1},
		"rounds":          {MaxRounds: -1},
		"bandwidth":       {BandwidthLimit: math.NaN()},
		"bits per second": {BandwidthLimit: 1},
		"choose one of":   {OnNoConvergence: "pray"},
		"timeout":         {Timeout: time.Millisecond},
	} {
		if _, err := bad.Complete(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want it to speak of %q", bad, err, want)
		}
	}
}

func TestSettingsOfHybrid(t *testing.T) {
	if got, err := (Settings{}).For(Hybrid); err != nil || got.OnNoConvergence != TurnHybrid {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := (Settings{OnNoConvergence: GiveUp}).For(Hybrid); err == nil ||
		!strings.Contains(err.Error(), "mode pre-copy") {
		t.Errorf("a hybrid that gives up: %v", err)
	}
	if got, err := (Settings{OnNoConvergence: TurnHybrid}).For(PreCopy); err != nil ||
		got.OnNoConvergence != TurnHybrid {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestSpillOfModes(t *testing.T) {
	for _, mode := range []Mode{Auto, PreCopy, PostCopy, Hybrid} {
		if got, err := (Settings{Spill: true}).For(mode); err != nil || !got.Spill {
			t.Errorf("%s: %+v, %v", mode, got, err)
		}
	}
	for _, mode := range []Mode{Cold, Restart} {
		_, err := (Settings{Spill: true}).For(mode)
		if err == nil || !strings.Contains(err.Error(), "--spill") {
			t.Errorf("%s: %v", mode, err)
		}
	}
}

func TestNewInodesOfModes(t *testing.T) {
	for _, mode := range []Mode{Auto, Cold, PreCopy, PostCopy, Hybrid} {
		if got, err := (Settings{NewInodes: true}).For(mode); err != nil || !got.NewInodes {
			t.Errorf("%s: %+v, %v", mode, got, err)
		}
	}
	_, err := (Settings{NewInodes: true}).For(Restart)
	if err == nil || !strings.Contains(err.Error(), "inodes") {
		t.Errorf("restart: %v", err)
	}
}
