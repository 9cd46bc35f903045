package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
)

// TestDisplayWaits: the reason why a migration waits is printed once for each phase, on one line.
func TestDisplayWaits(t *testing.T) {
	var out bytes.Buffer
	d := &display{out: &out, id: "0123456789abcdef"}
	for _, p := range []migration.Progress{
		{Phase: "dump"}, {Phase: "thaw"}, {Phase: "thaw", Waiting: "no engine\nof this name"},
		{Phase: "thaw", Waiting: "another reason"},
		{Phase: "release", Waiting: "no network"}, {Phase: "release", Waiting: "no network"},
	} {
		document, err := json.Marshal(p)
		if err == nil {
			err = d.update(document)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for text, times := range map[string]int{
		"thaw waits: no engine; of this name\n": 1, "another reason": 0, "release waits: no network\n": 1,
		"0.0 s  thaw\n": 1,
	} {
		if got := strings.Count(out.String(), text); got != times {
			t.Errorf("%q is there %d times, want %d: %s", text, got, times, &out)
		}
	}
}

// TestDisplayGoesOn: if the output is not a terminal, a long phase prints a line every ten seconds, with
// its rate and the time that is left.
func TestDisplayGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		d := &display{out: &out, id: "0123456789abcdef"}
		for range 25 {
			document, err := json.Marshal(migration.Progress{Phase: "send", DoneBytes: 1 << 20,
				TotalBytes: 8 << 20, Rate: 1 << 20, LeftTime: 7})
			if err == nil {
				err = d.update(document)
			}
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if lines, rates := strings.Count(out.String(), "send"),
			strings.Count(out.String(), "/s  7s left"); lines != 3 || rates != 2 {
			t.Errorf("%d lines, %d with a rate: %s", lines, rates, &out)
		}
	})
}

// TestSpillIsTold: both plans state the disk space that pages need; the progress and the report state the
// effect of a reboot.
func TestSpillIsTold(t *testing.T) {
	plan := migration.Plan{Source: "a", Target: "b", Possible: true, SpillBytes: 3 << 30}
	var short, long, none strings.Builder
	printPlan(&short, plan)
	if err := printForecast(&long, predict.Plan{Plan: plan}); err != nil {
		t.Fatal(err)
	}
	printPlan(&none, migration.Plan{})
	const words = "at most, encrypted, on the disk of a"
	if !strings.Contains(short.String(), words) || !strings.Contains(long.String(), words) ||
		strings.Contains(none.String(), "spill") {
		t.Errorf("%s\n%s\n%s", short.String(), long.String(), none.String())
	}
	for state, words := range spillWords {
		d := migration.Push{RemotePages: 10, LeftPages: 5, Spill: state}
		var report strings.Builder
		printPush(&report, &d, migration.Bytes{})
		if !strings.Contains(pushProgress(d), words) || !strings.Contains(report.String(), words) {
			t.Errorf("%s: %q, %q", state, pushProgress(d), report.String())
		}
	}
}
