package progress

import (
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/stream"
)

// Precopied notes how many bytes the pages have taken on the wire up to the end of a round.
func (t *Tracker) Precopied(wire uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.precopy = wire
}

// shareFinal divides what the pages took on the wire in the freeze among its rounds: when they end
// it has not left yet.
func (t *Tracker) shareFinal(wire int64) {
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

// Round takes what a round did, what became of its pages, and the downtime that is expected after it.
func (t *Tracker) Round(stats memory.RoundStats, pages pipeline.Stats, expected time.Duration) {
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

// Throttled notes that the container may use so many processors from now on; 0: as many as before.
func (t *Tracker) Throttled(cpus float64, at time.Time) {
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

// ExpectDowntime notes what a switchover would take now.
func (t *Tracker) ExpectDowntime(d memory.Decision) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rounds = len(t.facts.Rounds)
	t.expected, t.dirtying = d.ExpectedDowntime, d.DirtyingRateBytesPerSecond
}

// MemoryGrows notes how much more memory the container takes at the target.
func (t *Tracker) MemoryGrows(bytes int64) {
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

// Rounds is how many rounds of pages were done.
func (t *Tracker) Rounds() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.facts.Rounds)
}

// Pushes sets who reports on the post-copy push.
func (t *Tracker) Pushes(report func() *migration.Push, bytes func() PushBytes) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pushed, t.pushedBytes = report, bytes
}

// PushBytes are what the connections of a post-copy push have carried from the source, on the wire, and what
// that was before compression.
type PushBytes struct{ Urgent, Push, Raw int64 }

// Uncompressed is what was given to sessions to be sent.
func Uncompressed(counters stream.Counters) (bytes int64) {
	for _, count := range counters.Sent {
		bytes += int64(count.RawBytes)
	}
	return bytes
}
