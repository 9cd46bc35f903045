package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/wire/stream"
)

// maxReport bounds the report that a source sends with its confirmation.
const maxReport = 1 << 20

// tracker keeps what is worth telling about one migration: how far it is, and the facts of its report.
type tracker struct {
	spec migration.Spec

	mu     sync.Mutex
	step   migration.StepName
	total  int64 // bytes that are expected to travel, before compression
	done   int64
	meter  migration.Meter
	facts  migration.Facts
	report *migration.Report // of the migration when it has ended, or of the source
	kept   bool              // the report was made by an earlier agent, when the migration ended
}

func newTracker(spec migration.Spec) *tracker { return &tracker{spec: spec} }

func (t *tracker) begin(step migration.StepName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.step = step
}

func (t *tracker) expect(bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total = bytes
}

func (t *tracker) transferred(bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done += bytes
}

func (t *tracker) measured(link stream.Link, choice stream.Choice) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.facts.Link = migration.LinkSeen{
		BandwidthBitsPerSecond: link.BandwidthBitsPerSecond, RTTSeconds: link.RTT.Seconds(),
	}
	t.facts.Decisions = append(t.facts.Decisions, fmt.Sprintf("codec %s: %s", choice.Codec, choice.Why))
}

func (t *tracker) clock(offset stream.Offset) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.facts.Ahead, t.facts.AheadMay = offset.Ahead, offset.Error
}

func (t *tracker) frozen(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.facts.Frozen = at
}

func (t *tracker) held(stats network.HoldStats) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.facts.Held = migration.Held{Packets: stats.HeldPackets, Bytes: stats.HeldBytes, Dropped: stats.DroppedPackets}
}

// counted takes the bytes of a data connection, by what they were.
func (t *tracker) counted(counters stream.Counters) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sent := func(kind string) int64 { return int64(counters.Sent[kind].WireBytes) }
	t.facts.Bytes = migration.Bytes{
		MemoryFinal: sent(kindState), FilesFinal: sent(kindTrees), Layers: sent(kindLayer),
		Metadata:  sent(kindImage) + sent(kindName) + sent(kindFinal) + sent(kindStaged),
		MemoryRaw: int64(counters.Sent[kindState].RawBytes),
	}
}

// heardReport keeps the source's report, which knows more than the target's own.
func (t *tracker) heardReport(document []byte) {
	if len(document) == 0 || len(document) > maxReport || t.spec.Side != migration.Target {
		return
	}
	var report migration.Report
	if json.Unmarshal(document, &report) != nil || report.Migration != t.spec.ID {
		return // It is only for people to read.
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.report = &report
}

// finish makes the report that is kept.
func (t *tracker) finish(record migration.Record, result migration.Finish) migration.Report {
	record.Result = result.Result
	if record.Error == "" {
		record.Error = result.Error
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kept {
		return *t.report // An earlier agent knew more: it saw the migration.
	}
	if t.report == nil || t.spec.Side == migration.Source {
		report := migration.NewReport(record, t.facts, time.Now())
		t.report = &report
	}
	t.report.Result = record.Result
	return *t.report
}

// load reads the report that an earlier agent kept.
func (t *tracker) load(dir string) {
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

// now is the report as far as it is known.
func (t *tracker) now(record migration.Record, ended bool) migration.Report {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ended && t.report != nil {
		return *t.report
	}
	return migration.NewReport(record, t.facts, time.Now())
}

func (t *tracker) progress(record migration.Record, at time.Time) migration.Progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := migration.Progress{
		Migration: t.spec.ID, Phase: string(t.step), State: record.State, DoneBytes: t.done, TotalBytes: t.total,
		Rate: t.meter.Observe(at, t.done), Seconds: at.Sub(t.spec.Started).Seconds(),
	}
	return p.Estimate()
}
