package agent

import (
	"encoding/json"
	"testing"

	"github.com/godwit/godwit/internal/migration"
)

// TestHeardReport: a target takes its source's report only if it is of this migration.
func TestHeardReport(t *testing.T) {
	spec := migration.Spec{ID: "m", Mode: migration.PreCopy, Side: migration.Target}
	for _, one := range []struct {
		report migration.Report
		taken  bool
	}{
		{migration.Report{Migration: "m", Mode: migration.PreCopy}, true},
		{migration.Report{Migration: "other", Mode: migration.PreCopy}, false},
		{migration.Report{Migration: "m", Mode: migration.Cold}, false},
		{migration.Report{Migration: "m", Mode: "unheard-of"}, false},
	} {
		document, err := json.Marshal(one.report)
		if err != nil {
			t.Fatal(err)
		}
		tracker := newTracker(spec)
		if tracker.heardReport(document); (tracker.report != nil) != one.taken {
			t.Errorf("%s: taken: %t", document, !one.taken)
		}
	}
}
