package files

import (
	"io"

	"github.com/godwit/godwit/internal/bench/results"
)

// WriteRows prints a table for each workload and link of the suite files.
func WriteRows(r results.Result, w io.Writer) {
	r.WriteWays(w, results.WayTable{
		Columns: []results.Column{
			{"first copy", metricFirst}, {"sent", metricFirstSent}, {"again, frozen", metricAgain},
			{"sent after the first", metricAgainSent},
			{"downtime", results.Downtime}, {"total", results.Total}, {"sent in all", results.Link},
			{"of layers", results.Layers},
			{"agent's memory", metricSourceMemory}, {"target's", metricTargetMemory},
		},
		Ways: Ways(), Size: metricTree,
	})
}
