package progress

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"github.com/godwit/godwit/internal/migration"
)

// maxReport bounds the report that a source sends with its confirmation.
const maxReport = 1 << 20

// known are the facts, with what is known now of the pages that follow.
func (t *Tracker) known() migration.Facts {
	facts := t.facts
	if t.pushed != nil {
		facts.Push = t.pushed()
	}
	if t.pushedBytes != nil {
		bytes := t.pushedBytes()
		facts.Bytes.MemoryFaulted, facts.Bytes.MemoryPushed = bytes.Urgent, bytes.Push
		facts.Bytes.Uncompressed += bytes.Raw
	}
	return facts
}

// HeardReport keeps the source's report, which knows more than the target's own.
func (t *Tracker) HeardReport(document []byte) {
	if len(document) == 0 || len(document) > maxReport || t.Spec.Side != migration.Target {
		return
	}
	var report migration.Report
	if json.Unmarshal(document, &report) != nil || report.Migration != t.Spec.ID ||
		report.Mode != t.Spec.Mode {
		return // It is for people to read, and to foretell others by: this node's own does, too.
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.report = &report
}

// Finish makes the report that is kept. leaves is what stays at the source although users may look
// for it at the target.
func (t *Tracker) Finish(record migration.Record, result migration.Finish, leaves []string) migration.Report {
	record.Result = result.Result
	if record.Error == "" {
		record.Error = result.Error
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kept {
		return *t.report // An earlier agent knew more: it saw the migration.
	}
	if t.report == nil || t.Spec.Side == migration.Source {
		report := migration.NewReport(record, t.known(), time.Now())
		report.Notes = append(report.Notes, leaves...)
		t.report = &report
	}
	t.report.Result = record.Result
	t.facts, t.pushed, t.pushedBytes = t.known(), nil, nil // what knows of the post-copy push is large
	return *t.report
}

// Load reads the report that an earlier agent kept.
func (t *Tracker) Load(dir string) {
	data, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil {
		return // There is none yet.
	}
	var report migration.Report
	if json.Unmarshal(data, &report) == nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.report, t.kept = &report, true
	}
}

// Report is the report as far as it is known.
func (t *Tracker) Report(record migration.Record, ended bool) migration.Report {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ended && t.report != nil {
		return *t.report
	}
	return migration.NewReport(record, t.known(), time.Now())
}
