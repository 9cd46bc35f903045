package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
	"github.com/godwit/godwit/internal/memory/precopy"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/network/hold"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/transfer/layers"
	"github.com/godwit/godwit/internal/wire/stream"
)

// maxReport bounds the report that a source sends with its confirmation.
const maxReport = 1 << 20

// tracker keeps what is worth telling about one migration: how far it is, and the facts of its report.
type tracker struct {
	spec migration.Spec

	mu   sync.Mutex
	step migration.StepName
	// What the step has failed for that is tried again, and since when; empty: it has not failed.
	vain  string
	since time.Time
	total int64 // bytes that are expected to travel, before compression
	done  int64
	// Of a pre-copy: the rounds so far, the downtime if the switchover were now, and the bytes
	// written per second.
	rounds   int
	expected time.Duration
	dirtying float64
	// Of files: what they would take of the downtime if the switchover were now.
	filesExpected time.Duration
	throttledAt   time.Time // the last step began; zero: not throttled
	meter         migration.Meter
	precopy       uint64 // bytes of pages on the wire before the freeze
	raw           uint64 // bytes of pages in all rounds
	files         int64  // bytes of files on the wire before the freeze
	keptFiles     int64  // bytes of files that the target had from an earlier attempt
	facts         migration.Facts
	report        *migration.Report // of the migration when it has ended, or of the source
	kept          bool              // the report was made by an earlier agent, when the migration ended
	// Of pages that follow when the container was handed over; nil: there are none, or nothing is
	// known of them.
	pushed      func() *migration.Push
	pushedBytes func() pushBytes
}

func newTracker(spec migration.Spec) *tracker { return &tracker{spec: spec} }

// chose notes that the mode was chosen here, and why; nil: it was not.
func (t *tracker) chose(auto *autoMode) {
	if auto == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.facts.Requested = migration.Auto
	for _, why := range auto.choice.Why {
		t.decide("auto: " + why)
	}
	for _, unmet := range auto.choice.Unmet {
		t.decide("auto: cannot be met: " + unmet)
	}
	t.decide(fmt.Sprintf("auto: it took %s to choose", predict.Seconds(auto.took.Seconds())))
}

func (t *tracker) begin(step migration.StepName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if step != t.step {
		t.vain = ""
	}
	t.step = step
}

// failed notes why the step failed that began last.
func (t *tracker) failed(step migration.StepName, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if step != t.step {
		return
	}
	if t.vain == "" {
		t.since = time.Now()
	}
	t.vain = why
}

// waiting is what is tried again until it works, and for how long. Before the handover nothing is;
// of pages that follow their own figures tell.
func (t *tracker) waiting(state migration.State, at time.Time) (what string, seconds float64) {
	again := state == migration.Undoing || state == migration.Committed && t.step != migration.StepPush
	if !again || t.vain == "" {
		return "", 0
	}
	return t.vain, at.Sub(t.since).Seconds()
}

func (t *tracker) expect(bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total = bytes
}

// expectMore notes that more bytes may travel than were expected.
func (t *tracker) expectMore(bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total += bytes
}

// volumes notes what becomes of the container's volumes.
func (t *tracker) volumes(moved []migration.VolumeMoved) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.facts.Volumes = moved
}

func (t *tracker) transferred(bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done += bytes
}

func (t *tracker) measured(link stream.Link, choice stream.Choice, limit float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.facts.Link = migration.LinkSeen{
		BandwidthBitsPerSecond: link.BandwidthBitsPerSecond, RTTSeconds: link.RTT.Seconds(),
		LimitBitsPerSecond: limit,
	}
	t.decide(fmt.Sprintf("codec %s: %s", choice.Codec, choice.Why))
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

func (t *tracker) held(stats hold.Stats) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.facts.Held = migration.Held{
		Packets: stats.HeldPackets, Bytes: stats.HeldBytes, Dropped: stats.DroppedPackets,
		LongestSeconds: stats.LongestHoldSeconds,
	}
}

// counted takes the bytes of a data connection, by what they were.
func (t *tracker) counted(counters stream.Counters) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sent := func(kind string) int64 { return int64(counters.Sent[kind].WireBytes) }
	before := int64(t.precopy)
	t.shareFinal(sent(precopy.KindPages) - before)
	t.facts.Bytes = migration.Bytes{
		MemoryPrecopy: before + sent(kindKnown), MemoryFinal: sent(kindState) + sent(kindRefers) +
			sent(precopy.KindPages) - before,
		FilesPrecopy: t.files, FilesFinal: sent(kindFiles) - t.files, FilesKept: t.keptFiles,
		Layers:   sent(layers.KindLayer) + sent(layers.KindParts) + sent(layers.KindPieces),
		Metadata: sent(kindFinal) + sent(kindStaged) + sent(precopy.KindKey) + sent(kindMap),
		MemoryRaw: int64(counters.Sent[kindState].RawBytes + counters.Sent[kindKnown].RawBytes +
			counters.Sent[kindRefers].RawBytes + t.raw),
		Uncompressed: uncompressed(counters),
	}
}

// uncompressed is what was given to sessions to be sent.
func uncompressed(counters stream.Counters) (bytes int64) {
	for _, count := range counters.Sent {
		bytes += int64(count.RawBytes)
	}
	return bytes
}

// fileRound takes what a round of files did, and what the files have taken on the wire so far, as
// far as it has left.
func (t *tracker) fileRound(stats files.RoundStats, wire uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !stats.Final {
		t.files = int64(wire)
	}
	t.keptFiles += stats.KeptBytes
	t.done += stats.KeptBytes
	if len(t.facts.FileRounds) < maxRoundsKept {
		t.facts.FileRounds = append(t.facts.FileRounds, migration.FileRound{
			Entries: stats.Entries, ChangedEntries: stats.ChangedEntries, SentBytes: stats.SentBytes,
			ReadBytes: stats.ReadBytes, KeptBytes: stats.KeptBytes,
			UnsettledFiles: stats.UnsettledFiles, UnsettledBytes: stats.UnsettledBytes,
			ScanSeconds: stats.ScanTime.Seconds(), Seconds: stats.Duration.Seconds(), Final: stats.Final,
		})
	}
}

// expectFiles notes what files would take of the downtime now.
func (t *tracker) expectFiles(expected time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.filesExpected = expected
}

// precopied notes how many bytes the pages have taken on the wire up to the end of a round.
func (t *tracker) precopied(wire uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.precopy = wire
}

// shareFinal divides what the pages took on the wire in the freeze among its rounds: when they end
// it has not left yet.
func (t *tracker) shareFinal(wire int64) {
	var frames int64
	for _, round := range t.facts.Rounds {
		if round.Final {
			frames += round.SentBytes
		}
	}
	for i := range t.facts.Rounds {
		if round := &t.facts.Rounds[i]; round.Final && frames > 0 {
			round.SentBytes = int64(float64(round.SentBytes) / float64(frames) * float64(wire))
		}
	}
}

// round takes what a round did, what became of its pages, and the downtime that is expected after it.
func (t *tracker) round(stats memory.RoundStats, pages pipeline.Stats, expected time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.raw += stats.Bytes()
	if stats.Final && stats.Pages == 0 && stats.ComparedPages == 0 {
		return // It only looked.
	}
	if len(t.facts.Rounds) < maxRoundsKept {
		t.facts.Rounds = append(t.facts.Rounds, migration.Round{
			Pages: int64(stats.Pages), RawBytes: int64(stats.Bytes()), SentBytes: int64(stats.SentBytes),
			WrittenBytes:   int64(stats.Written()),
			UnchangedPages: int64(stats.UnchangedPages), ComparedPages: int64(stats.ComparedPages),
			ZeroPages:      int64(pages.ZeroPages),
			ReferencePages: int64(pages.ReferencePages), DeltaPages: int64(pages.DeltaPages),
			Seconds: stats.Duration.Seconds(), StoppedSeconds: stats.Stopped.Seconds(),
			ExpectedDowntimeSeconds: expected.Seconds(), Final: stats.Final,
		})
	}
	if stats.Unseen != "" {
		t.decide(fmt.Sprintf("%d pages of shared memory are compared in the freeze: %s", stats.ComparedPages,
			stats.Unseen))
	}
	if !stats.Final && stats.Interval > 0 {
		t.facts.DirtyingRate = stats.DirtyingRate()
	}
	for _, refused := range stats.Refused {
		t.decide(fmt.Sprintf("process %d (%s) is tracked by %s: %s", refused.Task, refused.Name,
			refused.Instead, refused.Reason))
	}
}

// maxRoundsKept bounds the report.
const maxRoundsKept = 2 * migration.MaxMaxRounds

// throttled notes that the container may use so many processors from now on; 0: as many as before.
func (t *tracker) throttled(cpus float64, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.facts.Throttles); n > 0 && !t.throttledAt.IsZero() {
		t.facts.Throttles[n-1].Seconds = at.Sub(t.throttledAt).Seconds()
		t.throttledAt = time.Time{}
	}
	if cpus > 0 {
		t.facts.Throttles = append(t.facts.Throttles,
			migration.ThrottleStep{AfterRounds: len(t.facts.Rounds), CPUs: cpus})
		t.throttledAt = at
	}
}

// expectDowntime notes what a switchover would take now.
func (t *tracker) expectDowntime(d memory.Decision) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rounds = len(t.facts.Rounds)
	t.expected, t.dirtying = d.ExpectedDowntime, d.DirtyingRateBytesPerSecond
}

// decided notes a decision for the report.
func (t *tracker) decided(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.decide(what)
}

// memoryGrows notes how much more memory the container takes at the target.
func (t *tracker) memoryGrows(bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.facts.MemoryGrowth = bytes
	if bytes >= growthWorthTelling {
		t.decide(fmt.Sprintf("the container takes %d MiB more at the target: each process gets its own "+
			"copy of memory that they share copy-on-write", bytes>>20))
	}
}

// growthWorthTelling is less than what else makes a container's memory grow or shrink in a move.
const growthWorthTelling = 4 << 20

// changedCodec notes that a data connection chose another codec.
func (t *tracker) changedCodec(from, to stream.Codec) {
	t.decided(fmt.Sprintf("codec %s after %s: it is now faster for this link, content and "+
		"processor", to, from))
}

// maxDecisions bounds the report.
const maxDecisions = 64

func (t *tracker) decide(what string) {
	if len(t.facts.Decisions) < maxDecisions && !slices.Contains(t.facts.Decisions, what) {
		t.facts.Decisions = append(t.facts.Decisions, what)
	}
}

func (t *tracker) roundsSoFar() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.facts.Rounds)
}

func (t *tracker) linkSeen() migration.LinkSeen {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.facts.Link
}

// broughtLayers notes what became of the image's layers at the target, so far.
func (t *tracker) broughtLayers(layers migration.Layers) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.facts.Layers = &layers
}

// pushes sets who reports on the post-copy push.
func (t *tracker) pushes(report func() *migration.Push, bytes func() pushBytes) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pushed, t.pushedBytes = report, bytes
}

// known are the facts, with what is known now of the pages that follow.
func (t *tracker) known() migration.Facts {
	facts := t.facts
	if t.pushed != nil {
		facts.Push = t.pushed()
	}
	if t.pushedBytes != nil {
		bytes := t.pushedBytes()
		facts.Bytes.MemoryFaulted, facts.Bytes.MemoryPushed = bytes.urgent, bytes.push
		facts.Bytes.Uncompressed += bytes.raw
	}
	return facts
}

// heardReport keeps the source's report, which knows more than the target's own.
func (t *tracker) heardReport(document []byte) {
	if len(document) == 0 || len(document) > maxReport || t.spec.Side != migration.Target {
		return
	}
	var report migration.Report
	if json.Unmarshal(document, &report) != nil || report.Migration != t.spec.ID ||
		report.Mode != t.spec.Mode {
		return // It is for people to read, and to foretell others by: this node's own does, too.
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.report = &report
}

// finish makes the report that is kept. leaves is what stays at the source although users may look
// for it at the target.
func (t *tracker) finish(record migration.Record, result migration.Finish, leaves []string) migration.Report {
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
		report := migration.NewReport(record, t.known(), time.Now())
		report.Notes = append(report.Notes, leaves...)
		t.report = &report
	}
	t.report.Result = record.Result
	t.facts, t.pushed, t.pushedBytes = t.known(), nil, nil // what knows of the post-copy push is large
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
	return migration.NewReport(record, t.known(), time.Now())
}

func (t *tracker) progress(record migration.Record, at time.Time) migration.Progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := migration.Progress{
		Migration: t.spec.ID, Phase: string(t.step), State: record.State, DoneBytes: t.done,
		TotalBytes: t.total,
		Rate:       t.meter.Observe(at, t.done), Seconds: at.Sub(t.spec.Started).Seconds(),
		Rounds: t.rounds, ExpectedDowntimeSeconds: t.expected.Seconds(), DirtyingRate: t.dirtying,
		Push:       t.known().Push,
		FileRounds: len(t.facts.FileRounds), ExpectedFilesSeconds: t.filesExpected.Seconds(),
	}
	p.Waiting, p.WaitingSeconds = t.waiting(record.State, at)
	if p.Push != nil && record.State == migration.Running { // the target has no step of its own for that
		p.Phase = string(migration.StepPush)
	}
	return p.Estimate()
}
