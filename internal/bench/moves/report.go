package moves

import (
	"fmt"
	"slices"
	"strings"

	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
)

// FromPush returns a report's measurements of the post-copy push.
func FromPush(r migration.Report) []results.Measurement {
	d := r.Push
	if d == nil {
		return nil // there was none
	}
	followed := float64(d.RemotePages) * float64(memory.PageSize())
	return []results.Measurement{
		{results.Push, d.Seconds}, {results.Goodput, followed / d.Seconds}, {results.Late, followed},
		{results.Faulted, float64(r.Bytes.MemoryFaulted)}, {results.Pushed, float64(r.Bytes.MemoryPushed)},
		{results.Urgent, float64(d.UrgentPages)}, {results.Served, float64(d.Faults)},
		{results.ServedMedian, d.FaultMedianSeconds}, {results.ServedP99, d.FaultP99Seconds},
		{results.ServedLongest, d.FaultMaximumSeconds},
		{results.WaitingShare, d.WaitingShare},
	}
}

// FromReport returns a report's measurements. The phases are those of the downtime, and add up to it.
func FromReport(r migration.Report) []results.Measurement {
	b := r.Bytes
	sent := b.MemoryPrecopy + b.MemoryFinal + b.MemoryFaulted + b.MemoryPushed + b.FilesFinal + b.Metadata
	rounds := 0
	for _, round := range r.Rounds {
		if !round.Final {
			rounds++
		}
	}
	measured := []results.Measurement{
		{results.Downtime, r.DowntimeSeconds}, {results.Handoff, r.HandoffSeconds},
		{results.Total, r.TotalSeconds},
		{results.Sent, float64(sent)}, {results.Frozen, float64(r.Bytes.MemoryFinal)},
		{results.Uncompressed, float64(r.Bytes.Uncompressed)},
		{results.Raw, float64(r.Bytes.MemoryRaw)},
		{results.Rounds, float64(rounds)},
	}
	return append(measured, PhasesOf(r, true, results.Phase)...)
}

// PhasesOf adds up the phases of the downtime, or all others, by their names.
func PhasesOf(r migration.Report, downtime bool, metric string) []results.Measurement {
	var measured []results.Measurement
	for _, phase := range r.Phases {
		if phase.Downtime != downtime {
			continue
		}
		name := fmt.Sprintf(metric, strings.ReplaceAll(phase.Name, "-", "_"))
		i := slices.IndexFunc(measured, func(m results.Measurement) bool { return m.Metric == name })
		if i < 0 {
			i = len(measured)
			measured = append(measured, results.Measurement{Metric: name})
		}
		measured[i].Value += phase.Seconds
	}
	return measured
}
