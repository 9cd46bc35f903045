package predict

import (
	"cmp"
	"math"
	"slices"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
)

// Parts are the times of a migration that hardly depend on the amount of memory or the bandwidth:
// everything except rounds, memory in the freeze, and remote pages.
type Parts struct {
	Begin  float64 `json:"begin_seconds"`  // from the request until the target is ready
	Ahead  float64 `json:"ahead_seconds"`  // from then until the freeze, without the rounds
	Freeze float64 `json:"freeze_seconds"` // frozen, without memory
	End    float64 `json:"end_seconds"`    // from the resume until nothing is left, without remote pages
}

// Past holds the results of past migrations between two nodes, by mode.
type Past map[migration.Mode]Seen

// Seen are the parts of past migrations.
type Seen struct {
	Parts
	RTTSeconds float64 `json:"rtt_seconds"` // of the link at that time
	Times      int     `json:"times"`       // how many migrations there were
	Same       bool    `json:"same"`        // it was the same container
	// Of the freezes, if there were several.
	ShortestFreeze float64 `json:"shortest_freeze_seconds,omitempty"`
	LongestFreeze  float64 `json:"longest_freeze_seconds,omitempty"`
}

// sane returns the past without impossible values.
func (p Past) sane() Past {
	sane := make(Past, len(p))
	for mode, seen := range p {
		for _, x := range []*float64{
			&seen.Begin, &seen.Ahead, &seen.Freeze, &seen.End, &seen.RTTSeconds, &seen.ShortestFreeze,
			&seen.LongestFreeze,
		} {
			*x = within(*x, mostSeconds)
		}
		seen.Times = max(seen.Times, 0)
		sane[mode] = seen
	}
	return sane
}

// Pace is how many seconds a byte of memory took in a past migration, if that was longer than the link
// needs: the processors of both nodes were the limit, with their other work. 0: not known, or the link was
// the limit.
type Pace struct {
	Rounds float64 `json:"rounds_seconds_per_byte"`
	Push   float64 `json:"drain_seconds_per_byte"`
}

// Transfer is memory that was sent while its container ran, all of it for the first time.
type Transfer struct{ RawBytes, SentBytes, Seconds float64 }

// Transferred returns the first round and the push of a migration; zero if it is too little to draw a
// conclusion.
func Transferred(report migration.Report) (round, push Transfer) {
	if len(report.Rounds) > 0 && !report.Rounds[0].Final {
		first := report.Rounds[0]
		round = Transfer{float64(first.RawBytes), float64(first.SentBytes),
			first.Seconds - report.Link.RTTSeconds}
	}
	if report.Mode == migration.Cold {
		round = frozenTransfer(report)
	}
	if report.Push != nil {
		sent := float64(report.Bytes.MemoryFaulted + report.Bytes.MemoryPushed)
		push = Transfer{float64(report.Push.RemotePages) * float64(memory.PageSize()), sent,
			report.Push.Seconds - report.Link.RTTSeconds}
	}
	return round.enough(report.Link), push.enough(report.Link)
}

// frozenTransfer returns the transfer of a cold migration. Its data also leaves beside the dump, as soon as
// some of it is there; the transfer must have taken much longer than the dump, or the dump was the limit.
func frozenTransfer(report migration.Report) Transfer {
	t := Transfer{RawBytes: float64(report.Bytes.MemoryRaw), SentBytes: float64(report.Bytes.MemoryFinal),
		Seconds: -report.Link.RTTSeconds / 2}
	dump := 0.0
	for _, phase := range report.Phases {
		switch phase.Name {
		case "transfer", "receive":
			t.Seconds += phase.Seconds
		case string(migration.StepDump):
			dump += phase.Seconds
		}
	}
	if t.Seconds < longAfter*dump {
		return Transfer{}
	}
	t.Seconds += max(0, dump-DefaultCosts().Dump)
	return t
}

// longAfter is how much longer than the dump the transfer must take for the dump not to matter.
const longAfter = 10

// enough returns zero if the transfer was too short.
func (t Transfer) enough(link migration.LinkSeen) Transfer {
	if t.SentBytes < leastTransfer || t.Seconds < max(leastTransferTime, link.RTTSeconds) {
		return Transfer{}
	}
	return t
}

// A smaller transfer says more about the connection than about the link.
const (
	leastTransfer     = 1 << 20
	leastTransferTime = 0.050
)

// BitsPerSecond is the bandwidth of a link that limited this transfer.
func (t Transfer) BitsPerSecond() float64 { return t.SentBytes * 8 / carried / t.Seconds }

// Pace returns the time for a byte over a link of this bandwidth, if the link was not the limit.
func (t Transfer) Pace(bitsPerSecond float64) float64 {
	if t.Seconds == 0 || bitsPerSecond <= 0 || t.Seconds < clearlyLonger*t.SentBytes*8/carried/bitsPerSecond {
		return 0
	}
	return t.Seconds / t.RawBytes
}

const clearlyLonger = 1.1

// PaceOf returns the pace of rounds and push of a migration over a link of this bandwidth, and which of the
// two existed without another limit.
func PaceOf(report migration.Report, bitsPerSecond float64) (pace Pace, rounds, pushed bool) {
	if report.Layers != nil || report.Link.LimitBitsPerSecond > 0 {
		return Pace{}, false, false
	}
	round, push := Transferred(report)
	return Pace{Rounds: round.Pace(bitsPerSecond), Push: push.Pace(bitsPerSecond * pushShare)},
		round.Seconds > 0, push.Seconds > 0
}

// CurveOf derives points of the dirtying curve from the rounds of a migration: each round knows what was
// written in the previous one, or sends it if it comes from an older version.
func CurveOf(report migration.Report) Curve {
	var curve Curve
	for i := 1; i < len(report.Rounds); i++ {
		before, round := report.Rounds[i-1], report.Rounds[i]
		if !round.Final && before.Seconds > leastTransferTime && len(report.Throttles) == 0 &&
			report.Push == nil {
			curve = append(curve, Point{before.Seconds, float64(cmp.Or(round.WrittenBytes, round.RawBytes))})
		}
	}
	slices.SortFunc(curve, func(a, b Point) int { return cmp.Compare(a.Seconds, b.Seconds) })
	return curve
}

// FilesOf returns how many bytes of files changed in a second, according to their rounds; false: not known.
func FilesOf(report migration.Report) (bytesPerSecond float64, known bool) {
	var changed, seconds float64
	for i := 1; i < len(report.FileRounds); i++ {
		if round := report.FileRounds[i]; !round.Final {
			changed, seconds = changed+float64(round.SentBytes), seconds+report.FileRounds[i-1].Seconds
		}
	}
	if seconds < leastTransferTime {
		return 0, false
	}
	return changed / seconds, true
}

// ContentOf returns the bytes sent for each byte of memory; 0: not known.
func ContentOf(report migration.Report) float64 {
	raw, sent := float64(report.Bytes.MemoryRaw), float64(report.Bytes.MemoryFinal)
	if report.Mode != migration.Cold {
		if raw, sent = 0, 0; len(report.Rounds) > 0 && report.Mode != migration.PostCopy {
			raw, sent = float64(report.Rounds[0].RawBytes), float64(report.Rounds[0].SentBytes)
		}
	}
	if raw <= 0 {
		return 0
	}
	return within(sent/raw, 1)
}

// pastPages is the size of a page sample that says as much about the contents as a past migration of all
// pages.
const pastPages = 64

// Holding returns a container with its contents of the last migration, if no sample was taken now.
func (c Container) Holding(content float64) Container {
	if c.SampledPages == 0 && content > 0 {
		c.Ratio, c.SampledPages = content, pastPages
	}
	return c
}

// Middle returns the median of the results in a mode, the latest last, over the link of the latest. One
// slow moment does not count among several.
func Middle(all []Seen) Seen {
	latest := all[len(all)-1]
	all = slices.DeleteFunc(slices.Clone(all),
		func(s Seen) bool { return likeness(s.RTTSeconds, latest.RTTSeconds) < sameWay })
	sorted := func(of func(Parts) float64) (known []float64) {
		for _, s := range all {
			if x := of(s.Parts); x > 0 {
				known = append(known, x)
			}
		}
		slices.Sort(known)
		return known
	}
	middle := func(of func(Parts) float64) float64 {
		known := sorted(of)
		if len(known) == 0 {
			return 0
		}
		return (known[(len(known)-1)/2] + known[len(known)/2]) / 2
	}
	seen := Seen{
		Parts: Parts{
			Begin:  middle(func(p Parts) float64 { return p.Begin }),
			Ahead:  middle(func(p Parts) float64 { return p.Ahead }),
			Freeze: middle(func(p Parts) float64 { return p.Freeze }),
			End:    middle(func(p Parts) float64 { return p.End }),
		},
		RTTSeconds: latest.RTTSeconds, Times: len(all), Same: latest.Same,
	}
	if freezes := sorted(func(p Parts) float64 { return p.Freeze }); len(freezes) > 1 {
		seen.ShortestFreeze, seen.LongestFreeze = freezes[0], freezes[len(freezes)-1]
	}
	return seen
}

// sameWay is how alike two round trips must be to belong to the same link.
const sameWay = 0.5

// PartsOf reads the parts from a report. BytesPerSecond is the bandwidth of the link. A part is 0 if the
// migration cannot show it: a freeze that was mostly memory, a beginning in which layers were fetched.
func PartsOf(report migration.Report, bytesPerSecond float64) Parts {
	var p Parts
	step := &p.Begin
	for _, phase := range report.Phases {
		switch migration.StepName(phase.Name) {
		case migration.StepRounds, migration.StepPrepare:
			step = &p.Ahead
		case migration.StepPush:
			continue
		}
		if phase.Downtime {
			step = &p.End // of the following phases
			continue
		}
		*step += phase.Seconds
	}
	for _, round := range report.Rounds {
		if !round.Final {
			p.Ahead -= round.Seconds
		}
	}
	for _, round := range report.FileRounds {
		if !round.Final {
			p.Ahead -= round.Seconds
		}
	}
	if memory := float64(report.Bytes.MemoryFinal) / math.Max(bytesPerSecond,
		1); memory < report.DowntimeSeconds/4 {
		p.Freeze = report.DowntimeSeconds - memory
	}
	if report.Layers != nil {
		p.Begin = 0
	}
	if report.Mode == migration.Restart {
		p.Freeze = 0 // see RestartOf
	}
	p.Ahead = max(0, p.Ahead)
	return p
}

// RestartOf returns how long a container took to end, and to start anew, in a migration of mode restart.
func RestartOf(report migration.Report) (stop, start float64) {
	if report.Mode != migration.Restart {
		return 0, 0
	}
	for _, phase := range report.Phases {
		switch {
		case !phase.Downtime:
		case phase.Name == string(migration.StepStop):
			stop += phase.Seconds
		case phase.Name == string(migration.StepStart):
			start += phase.Seconds
		}
	}
	return stop, start
}

// alike lists the modes whose past is useful for a mode, the best first. Their differences are known: see
// fixed.
func alike(mode migration.Mode) []migration.Mode {
	switch mode {
	case migration.PreCopy:
		return []migration.Mode{migration.PreCopy, migration.Hybrid, migration.PostCopy, migration.Cold}
	case migration.Hybrid:
		return []migration.Mode{migration.Hybrid, migration.PreCopy, migration.PostCopy, migration.Cold}
	case migration.PostCopy:
		return []migration.Mode{migration.PostCopy, migration.Hybrid, migration.PreCopy, migration.Cold}
	case migration.Cold:
		return []migration.Mode{migration.Cold, migration.PreCopy, migration.Hybrid, migration.PostCopy}
	}
	return []migration.Mode{migration.Restart}
}

// costsCount is the number of migrations that the costs are worth.
const costsCount = 0.3

// otherContainer is the weight of another container's past.
const otherContainer = 0.6

// corrected returns the parts of a mode: the values from the costs, corrected by their errors in the past.
func (m *model) corrected(mode migration.Mode) Parts {
	own, plain := m.fixed(mode), m.plain().fixed(mode)
	p := Parts{
		Begin: m.correct(mode, own, func(p Parts) float64 { return p.Begin }),
		Ahead: m.correct(mode, own, func(p Parts) float64 { return p.Ahead }),
		End:   m.correct(mode, own, func(p Parts) float64 { return p.End }),
	}
	// Most of the other parts is round trips, and the work is uncertain; a freeze is all work except the
	// way of its last byte.
	p.Freeze = m.correct(mode, plain, func(p Parts) float64 { return p.Freeze })
	p.Freeze = m.rtt/2 + max(0, p.Freeze-m.rtt/2)*m.lean.costs
	switch seen := m.in.Past[mode]; { // past values are possible
	case m.lean.costs > 1:
		p.Freeze = max(p.Freeze, min(seen.LongestFreeze, mostCorrection*p.Freeze))
	case m.lean.costs < 1 && seen.ShortestFreeze > 0:
		p.Freeze = min(p.Freeze, seen.ShortestFreeze)
	}
	return p
}

// correct corrects one part. The past of another mode, or of another container, counts only by its
// difference from the costs; and it counts less for a more different link, because some of it is round
// trips.
func (m *model) correct(mode migration.Mode, own Parts, of func(Parts) float64) float64 {
	expected := of(own)
	for _, other := range alike(mode) {
		seen, is := m.in.Past[other]
		if !is || of(seen.Parts) <= 0 {
			continue
		}
		weight := likeness(seen.RTTSeconds, m.rtt) * float64(seen.Times) / (float64(seen.Times) + costsCount)
		if !seen.Same {
			weight *= otherContainer
		}
		more := weight * (of(seen.Parts) - of(m.plain().fixed(other)))
		return min(max(expected+more, expected/mostCorrection), expected*mostCorrection+correctionSlack)
	}
	return expected
}

// Corrections are bounded: one migration may have met a moment in which everything was slow.
const (
	mostCorrection  = 4
	correctionSlack = 0.050 // seconds
)

// plain returns the model with every value as measured.
func (m *model) plain() *model {
	other := *m
	other.lean = level()
	return &other
}

// likeness of two round trips is 1 if they are the same. Differences between round trips of less than some
// ms do not matter.
func likeness(a, b float64) float64 {
	const none = 0.002
	return (min(a, b) + none) / (max(a, b) + none)
}
