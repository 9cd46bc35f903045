package migration

import (
	"testing"
	"time"
)

func TestStageSettings(t *testing.T) {
	for _, test := range []struct {
		given StageSettings
		keep  time.Duration // 0: refused
	}{
		{StageSettings{}, DefaultKeep},
		{StageSettings{Keep: time.Minute, KeepFresh: 2 * time.Minute}, 2 * time.Minute},
		{StageSettings{KeepFresh: time.Minute}, DefaultKeep},
		{StageSettings{Keep: -1}, 0},
		{StageSettings{Keep: MaxKeep + 1}, 0},
		{StageSettings{KeepFresh: time.Millisecond}, 0},
		{StageSettings{BandwidthLimit: 1}, 0},
	} {
		got, err := test.given.Complete()
		if (err != nil) != (test.keep == 0) || err == nil && got.Keep != test.keep {
			t.Errorf("%+v: %+v, %v", test.given, got, err)
		}
	}
}

func TestCalled(t *testing.T) {
	for reference, want := range map[string]bool{"web": true, "0a1b": true, "": false, "we": false,
		"0b": false} {
		if Called(reference, "0a1b2c", "web") != want {
			t.Errorf("%q: %v", reference, !want)
		}
	}
}
