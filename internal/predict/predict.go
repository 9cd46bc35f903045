package predict

import (
	"math"
	"time"

	"github.com/godwit/godwit/internal/migration"
)

// Overhead is the rounds' assumption of how long a container is frozen without its memory and the round
// trip.
const Overhead = 40 * time.Millisecond

// Interval is an expected value and its range: nine of ten results are between Low and High.
type Interval struct {
	Low      float64 `json:"low"`
	Expected float64 `json:"expected"`
	High     float64 `json:"high"`
}

// Prediction is the predicted cost of a migration in a mode.
type Prediction struct {
	Mode     migration.Mode `json:"mode"`
	Possible bool           `json:"possible"`
	Why      string         `json:"why,omitempty"` // why the mode is not possible

	Downtime     Interval `json:"downtime_seconds"`
	Interruption Interval `json:"interruption_seconds"` // the longest that a client waits for an answer
	Handoff      Interval `json:"handoff_seconds"`
	Total        Interval `json:"total_seconds"`
	Bytes        Interval `json:"bytes"`
	FrozenBytes  Interval `json:"frozen_bytes"` // of these, in the freeze

	SourceCPU    Interval `json:"source_cpu_seconds"`
	TargetCPU    Interval `json:"target_cpu_seconds"`
	TargetMemory Interval `json:"target_memory_bytes"` // at most, beside the container itself
	Split        Interval `json:"split_seconds"`       // its state is on two nodes
	// time that its threads wait for pages after the handover, together
	Waiting Interval `json:"waiting_seconds"`

	Converges bool   `json:"converges"`
	Risk      string `json:"risk"`
	Use       Use    `json:"use"`

	watched float64 // for how many seconds the container's writes were observed
}

// Use are the settings that the migration would use.
type Use struct {
	Rounds  int     `json:"rounds"`
	Codec   string  `json:"codec"`
	Streams int     `json:"streams"`
	CPUs    float64 `json:"throttled_to_cpus"` // 0: not throttled
}

// Of predicts one mode.
func Of(in Input, mode migration.Mode) Prediction {
	in = in.sane()
	expected := newModel(in, level())
	better, worse := leanings(in)
	low, high, middle := newModel(in, better).of(mode), newModel(in, worse).of(mode), expected.of(mode)
	interval := func(of func(outcome) float64) Interval {
		a, b, c := of(low), of(middle), of(high)
		return Interval{Low: min(a, b, c), Expected: b, High: max(a, b, c)}
	}
	p := Prediction{Mode: mode, Possible: true, Converges: middle.converges}
	p.Downtime = interval(func(o outcome) float64 { return o.downtime })
	p.Interruption = interval(func(o outcome) float64 { return o.downtime + in.Link.RTTSeconds + o.wait() })
	p.Interruption.Low = interval(func(o outcome) float64 {
		return o.downtime + in.Link.RTTSeconds +
			o.burst
	}).Low
	p.Interruption.High = interval(func(o outcome) float64 {
		return o.downtime + 1.5*in.Link.RTTSeconds + in.Link.JitterSeconds + o.split
	}).High
	p.Handoff = interval(func(o outcome) float64 { return o.handoff })
	p.Total = interval(func(o outcome) float64 { return o.total })
	p.Bytes = interval(func(o outcome) float64 { return o.bytes })
	p.FrozenBytes = interval(func(o outcome) float64 { return o.frozen })
	p.SourceCPU = interval(func(o outcome) float64 { return o.sourceCPU })
	p.TargetCPU = interval(func(o outcome) float64 { return o.targetCPU })
	p.TargetMemory = interval(func(o outcome) float64 { return o.targetMemory })
	p.Split = interval(func(o outcome) float64 { return o.split })
	p.Waiting = interval(func(o outcome) float64 { return o.waiting })
	// A program may touch no page that is missing.
	p.Waiting.Low, p.Waiting.High = max(0, p.Waiting.Low/3-firstFaults*in.Link.RTTSeconds),
		min(p.Waiting.High*4, p.Split.High*float64(max(1, in.Container.Threads)))
	p.Waiting.High = max(p.Waiting.High, p.Waiting.Expected)
	p.Use = Use{Rounds: middle.rounds, Codec: expected.codec.String(), Streams: streams(in),
		CPUs: middle.cpus}
	p.Risk, p.watched = risk(p), expected.in.Container.Curve.Longest()
	// the agent then sends the rest before the handover
	if mode == migration.PreCopy && tooLong(in, p) != "" {
		in.Demands.Settings.OnNoConvergence = migration.StopAndCopy
		return Of(in, mode)
	}
	if why := impossible(in, mode); why != "" {
		p.Possible, p.Why = false, why
	} else if why := tooLong(in, p); why != "" {
		p.Possible, p.Why = false, why
	}
	return p
}

// impossible returns why a mode is not possible, or not allowed.
func impossible(in Input, mode migration.Mode) string {
	switch {
	case in.Demands.Refused[mode] != "":
		return in.Demands.Refused[mode]
	case mode == migration.Restart:
		return in.Container.RestartImpossible
	case in.Container.CheckpointImpossible != "":
		return in.Container.CheckpointImpossible
	case in.Demands.NoPostCopy && splits(mode):
		return "its state would be on two nodes for a while"
	}
	return ""
}

// tooLong returns why the state must not be on two nodes for as long as a mode would have it there. A
// hybrid whose rounds are expected to converge is not refused: if they do not, the agent bounds the rest.
func tooLong(in Input, p Prediction) string {
	if !splits(p.Mode) && p.Split.Expected == 0 {
		return ""
	}
	return in.Demands.Split.Refuses(duration(min(p.Split.Expected, migration.MaxMaxSplit.Seconds()+1)))
}

// SplitOver returns for how long both nodes are needed if the rest takes so long at the full speed of the
// link.
func SplitOver(left, rtt time.Duration) time.Duration {
	return time.Duration(float64(left)/pushShare) + rtt
}

func splits(mode migration.Mode) bool { return mode == migration.PostCopy || mode == migration.Hybrid }

// Modes lists the modes that are predicted.
func Modes() []migration.Mode {
	return []migration.Mode{migration.Cold, migration.PreCopy, migration.Hybrid, migration.PostCopy,
		migration.Restart}
}

// All predicts every mode.
func All(in Input) []Prediction {
	all := make([]Prediction, 0, len(Modes()))
	for _, mode := range Modes() {
		all = append(all, Of(in, mode))
	}
	return all
}

// windowBytes is the maximum in flight on one connection: the window of the receiver (wire.Sysctls).
const windowBytes = 6 << 20

// streams returns the useful number of connections.
func streams(in Input) int {
	underWay := in.Link.BandwidthBitsPerSecond / 8 * in.Link.RTTSeconds
	return int(min(8, max(1, math.Ceil(underWay/windowBytes))))
}

// soonest is after how many seconds a program may reuse its files at the earliest. RabbitMQ with 12.8 MB/s
// of messages that are soon consumed had 6 MiB to send after 69 s, and 2 to 10 MiB after half a second
// ("bench studies --study d").
const soonest = 1.0

// leanings returns uncertain values at their better and at their worse end.
func leanings(in Input) (better, worse leaning) {
	bandwidth := 0.12 + min(0.3, 5*in.Link.Loss)
	if rtt := in.Link.RTTSeconds; rtt > 0 {
		bandwidth += min(0.3, in.Link.JitterSeconds/rtt/2)
	}
	switch {
	case in.Link.BandwidthBitsPerSecond <= 0:
		bandwidth = 4
	case in.Link.Seen > 600:
		bandwidth += 0.3
	}
	dirtying := 1.0
	switch watched := in.Container.Curve.Longest(); {
	case watched >= 10:
		dirtying = 0.35
	case watched >= 1:
		dirtying = 0.5
	}
	content := 0.6
	if in.Container.SampledPages > 0 {
		content = 0.02 + 0.5/math.Sqrt(float64(in.Container.SampledPages))
	}
	better = leaning{bandwidth: 1 + bandwidth, dirtying: 1 - dirtying, costs: 0.6, content: 1 - content,
		rewritten: soonest}
	worse = leaning{bandwidth: 1 / (1 + bandwidth), dirtying: 1 + 1.5*dirtying, costs: 2.5,
		content: 1 + content}
	return better, worse
}
