package progress

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/files/copies"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/wire/stream"
)

// Tracker keeps what is worth telling about one migration: how far it is, and the facts of its report.
type Tracker struct {
	Spec migration.Spec // of the migration; it does not change

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
	travelled
	facts  migration.Facts
	report *migration.Report // of the migration when it has ended, or of the source
	kept   bool              // the report was made by an earlier agent, when the migration ended
	// Of pages that follow when the container was handed over; nil: there are none, or nothing is
	// known of them.
	pushed      func() *migration.Push
	pushedBytes func() PushBytes
}

// travelled counts the bytes of the rounds, by kind.
type travelled struct {
	precopy   uint64 // of pages, on the wire before the freeze
	raw       uint64 // of pages, in all rounds
	files     int64  // of files, on the wire before the freeze
	keptFiles int64  // of files that the target had from an earlier attempt
}

// NewTracker makes the tracker of a migration.
func NewTracker(spec migration.Spec) *Tracker { return &Tracker{Spec: spec} }

// Chose notes that the mode was chosen here, why, and how long that took.
func (t *Tracker) Chose(choice predict.Choice, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.facts.Requested = migration.Auto
	for _, why := range choice.Why {
		t.decide("auto: " + why)
	}
	for _, unmet := range choice.Unmet {
		t.decide("auto: cannot be met: " + unmet)
	}
	t.decide(fmt.Sprintf("auto: it took %s to choose", predict.Seconds(took.Seconds())))
}

// Begin notes that a step or an undo begins.
func (t *Tracker) Begin(step migration.StepName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if step != t.step {
		t.vain = ""
	}
	t.step = step
}

// Failed notes why the step failed that began last.
func (t *Tracker) Failed(step migration.StepName, why string) {
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

// Waiting is what is tried again until it works, and for how long. Before the handover nothing is;
// of pages that follow their own figures tell.
func (t *Tracker) Waiting(state migration.State, at time.Time) (what string, seconds float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waiting(state, at)
}

// waiting is Waiting, for who holds the lock.
func (t *Tracker) waiting(state migration.State, at time.Time) (what string, seconds float64) {
	again := state == migration.Undoing || state == migration.Committed && t.step != migration.StepPush
	if !again || t.vain == "" {
		return "", 0
	}
	return t.vain, at.Sub(t.since).Seconds()
}

// Expect notes how many bytes are expected to travel.
func (t *Tracker) Expect(bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total = bytes
}

// ExpectMore notes that more bytes may travel than were expected.
func (t *Tracker) ExpectMore(bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total += bytes
}

// Volumes notes what becomes of the container's volumes.
func (t *Tracker) Volumes(moved []migration.VolumeMoved) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.facts.Volumes = moved
}

// Transferred notes that so many more bytes have travelled.
func (t *Tracker) Transferred(bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done += bytes
}

// Measured notes what the link carries, and the codec that was chosen for it.
func (t *Tracker) Measured(link stream.Link, choice stream.Choice, limit float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.facts.Link = migration.LinkSeen{
		BandwidthBitsPerSecond: link.BandwidthBitsPerSecond, RTTSeconds: link.RTT.Seconds(),
		LimitBitsPerSecond: limit,
	}
	t.decide(fmt.Sprintf("codec %s: %s", choice.Codec, choice.Why))
}

// Clock notes by how much the clock of the target is ahead.
func (t *Tracker) Clock(offset stream.Offset) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.facts.Ahead, t.facts.AheadMay = offset.Ahead, offset.Error
}

// Frozen notes when the container was frozen.
func (t *Tracker) Frozen(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.facts.Frozen = at
}

// Held notes what was held of the container's packets.
func (t *Tracker) Held(held migration.Held) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.facts.Held = held
}

// Carried is what the data connections of a migration have carried from the source, in bytes on the wire by
// what they were.
type Carried struct {
	Pages    int64 // of memory, in rounds and in the freeze
	Known    int64 // pages that went ahead, to which the execution state refers
	State    int64 // the execution state
	Files    int64
	Layers   int64
	Metadata int64

	StateRaw     int64 // of what Known and State have, before compression
	Uncompressed int64 // of all, before compression
}

// Counted takes what the data connections have carried so far.
func (t *Tracker) Counted(carried Carried) {
	t.mu.Lock()
	defer t.mu.Unlock()
	precopy := int64(t.precopy)
	t.shareFinal(carried.Pages - precopy)
	t.facts.Bytes = migration.Bytes{
		MemoryPrecopy: precopy + carried.Known, MemoryFinal: carried.State + carried.Pages - precopy,
		FilesPrecopy: t.files, FilesFinal: carried.Files - t.files, FilesKept: t.keptFiles,
		Layers: carried.Layers, Metadata: carried.Metadata,
		MemoryRaw: carried.StateRaw + int64(t.raw), Uncompressed: carried.Uncompressed,
	}
}

// FileRound takes what a round of files did, and what the files have taken on the wire so far, as
// far as it has left.
func (t *Tracker) FileRound(stats copies.Stats, wire uint64) {
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

// ExpectFiles notes what files would take of the downtime now.
func (t *Tracker) ExpectFiles(expected time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.filesExpected = expected
}

// Decided notes a decision for the report.
func (t *Tracker) Decided(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.decide(what)
}

// ChangedCodec notes that a data connection chose another codec.
func (t *Tracker) ChangedCodec(from, to stream.Codec) {
	t.Decided(fmt.Sprintf("codec %s after %s: it is now faster for this link, content and "+
		"processor", to, from))
}

// maxDecisions bounds the report.
const maxDecisions = 64

func (t *Tracker) decide(what string) {
	if len(t.facts.Decisions) < maxDecisions && !slices.Contains(t.facts.Decisions, what) {
		t.facts.Decisions = append(t.facts.Decisions, what)
	}
}

// Link is what was measured of the link.
func (t *Tracker) Link() migration.LinkSeen {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.facts.Link
}

// BroughtLayers notes what became of the image's layers at the target, so far.
func (t *Tracker) BroughtLayers(layers migration.Layers) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.facts.Layers = &layers
}

// Progress is how far the migration is.
func (t *Tracker) Progress(record migration.Record, at time.Time) migration.Progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := migration.Progress{
		Migration: t.Spec.ID, Phase: string(t.step), State: record.State, DoneBytes: t.done,
		TotalBytes: t.total,
		Rate:       t.meter.Observe(at, t.done), Seconds: at.Sub(t.Spec.Started).Seconds(),
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
