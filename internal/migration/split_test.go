package migration

import (
	"strings"
	"testing"
	"time"
)

// TestSplitLimits combines the node's policy, the user's settings, and the maximum time for which both
// nodes are then needed.
func TestSplitLimits(t *testing.T) {
	const short, long = 9 * time.Second, time.Hour
	hybrid := Settings{OnNoConvergence: TurnHybrid}
	for _, one := range []struct {
		name          string
		use           PostCopyUse
		settings      Settings
		predicted     time.Duration
		asked, byAuto string // a word of the refusal; empty: allowed
	}{
		{"default, short", PostCopyAuto, Settings{}, short, "", ""},
		{"default, long", PostCopyAuto, Settings{}, long, "", "mode auto"},
		{"no configuration, long", "", Settings{}, long, "", "mode auto"},
		{"the user allows more", PostCopyAuto, Settings{MaxSplit: 2 * time.Hour}, long, "", ""},
		{"the user allows less", PostCopyAuto, Settings{MaxSplit: time.Second}, short, "--max-split",
			"--max-split"},
		{"the user chooses hybrid", PostCopyAuto, hybrid, long, "", ""},
		{"on request, nobody asks", PostCopyOnRequest, Settings{}, short, "", "on-request"},
		{"on request, with a bound", PostCopyOnRequest, Settings{MaxSplit: time.Minute}, short, "", ""},
		{"on request, with a bound that is too short", PostCopyOnRequest, Settings{MaxSplit: time.Second},
			short, "--max-split", "--max-split"},
		{"on request, hybrid", PostCopyOnRequest, hybrid, long, "", ""},
		{"never", PostCopyNever, Settings{}, 0, "never", "never"},
		{"never, whatever the user allows", PostCopyNever,
			Settings{MaxSplit: time.Hour, OnNoConvergence: TurnHybrid}, 0, "never", "never"},
	} {
		asked, byAuto := SplitLimits(one.use, one.settings)
		for what, pair := range map[string][2]string{
			"who asks":  {asked.Refuses(one.predicted), one.asked},
			"mode auto": {byAuto.Refuses(one.predicted), one.byAuto},
		} {
			if got, want := pair[0], pair[1]; (got == "") != (want == "") || !strings.Contains(got, want) {
				t.Errorf("%s, %s: refused by %q, want %q", one.name, what, got, want)
			}
		}
	}
}

func TestParsePostCopyUse(t *testing.T) {
	for text, want := range map[string]PostCopyUse{"": PostCopyAuto, "auto": PostCopyAuto,
		"on-request": PostCopyOnRequest, "never": PostCopyNever} {
		if got, err := ParsePostCopyUse(text); err != nil || got != want {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	if _, err := ParsePostCopyUse("Never"); err == nil || !strings.Contains(err.Error(), "on-request") {
		t.Errorf("%v, want the choices", err)
	}
}

func TestMaxSplit(t *testing.T) {
	for _, mode := range []Mode{Auto, PreCopy, PostCopy, Hybrid} {
		if _, err := (Settings{MaxSplit: time.Second}).For(mode); err != nil {
			t.Errorf("mode %s: %v", mode, err)
		}
	}
	for _, mode := range []Mode{Cold, Restart} {
		if _, err := (Settings{MaxSplit: time.Second}).For(mode); err == nil {
			t.Errorf("mode %s has a longest time that both nodes are needed", mode)
		}
	}
	for _, bad := range []time.Duration{-1, MaxMaxSplit + 1} {
		if _, err := (Settings{MaxSplit: bad}).Complete(); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}
