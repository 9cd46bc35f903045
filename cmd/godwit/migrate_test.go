package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/migration"
)

// TestDisplayWaits: what a migration waits for is said once for each phase, on one line.
func TestDisplayWaits(t *testing.T) {
	var out bytes.Buffer
	d := &display{out: &out, id: "0123456789abcdef"}
	for _, p := range []migration.Progress{
		{Phase: "dump"}, {Phase: "thaw"}, {Phase: "thaw", Waiting: "no engine\nof this name"}, {Phase: "thaw", Waiting: "another reason"},
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
		"thaw waits: no engine; of this name\n": 1, "another reason": 0, "release waits: no network\n": 1, "0.0 s  thaw\n": 1,
	} {
		if got := strings.Count(out.String(), text); got != times {
			t.Errorf("%q is there %d times, want %d: %s", text, got, times, &out)
		}
	}
}
