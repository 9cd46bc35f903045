package main

import (
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/migration"
)

func TestParseStop(t *testing.T) {
	now := time.Date(2026, 3, 4, 13, 0, 0, 0, time.UTC)
	for text, want := range map[string]string{
		"b@90s": "2026-03-04T13:01:30Z", " b@14:30": "2026-03-04T14:30:00Z",
		"b@14:30:05": "2026-03-04T14:30:05Z",
		"b@12:59":    "2026-03-05T12:59:00Z", "b@2026-04-01T00:00:00Z": "2026-04-01T00:00:00Z",
		"b@-1s": "2026-03-04T12:59:59Z",
	} {
		stop, err := parseStop(text, now)
		if err != nil || stop.Node != "b" ||
			time.Unix(0, stop.DeadlineUnixNanoseconds).UTC().Format(time.RFC3339) != want {
			t.Errorf("%q: %v, %v", text, stop, err)
		}
	}
	for _, text := range []string{"", "b", "@10s", "b@", "b@soon", "b@25:00"} {
		if stop, err := parseStop(text, now); err == nil {
			t.Errorf("%q is %v", text, stop)
		}
	}
}

func TestPrintPlacement(t *testing.T) {
	now := time.Date(2026, 3, 4, 13, 0, 0, 0, time.Local)
	list := []migration.Stage{
		{Target: "b", Placement: &migration.Placement{
			Why: migration.PlacementPath, Deadline: now.Add(time.Minute), Begin: now.Add(10 * time.Second),
			Outlook: "in time", NeedSeconds: 2,
			NeedWorstSeconds: 3, NeedBytes: 1 << 20,
		}},
		{Target: "c", Placement: &migration.Placement{Why: migration.PlacementPath,
			Deadline: now.Add(48 * time.Hour), Begin: now.Add(time.Hour), From: "b", Outlook: "late",
			LateSeconds: 2}},
		{Target: "d", Placement: &migration.Placement{Why: migration.PlacementNearest}},
	}
	var out strings.Builder
	if err := printPlacement(&out, list, now); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	for i, want := range [][]string{
		{"NODE", "OUTLOOK"}, {"b", "13:01:00", "13:00:10", "2.00 s (at worst 3.00 s)", "1.0 MiB", "in time"},
		{"c", "2026-03-06", "14:00:00, from b", "late by 2.00 s"}, {"d", "-", "now"},
	} {
		for _, part := range want {
			if !strings.Contains(lines[i], part) {
				t.Errorf("%q lacks %q", lines[i], part)
			}
		}
	}
	if text := placementText(list[0].Placement, now); text != "path, by 13:01:00: in time" {
		t.Errorf("%q", text)
	}
	if text := placementText(nil, now); text != "-" {
		t.Errorf("%q", text)
	}
}
