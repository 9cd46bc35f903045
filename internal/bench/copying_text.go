package bench

import "io"

// writeCopying prints a table for each workload and link of the suite files.
func (r Result) writeCopying(w io.Writer) {
	r.writeWays(w, wayTable{
		columns: []column{
			{"first copy", metricFirst}, {"sent", metricFirstSent}, {"again, frozen", metricAgain},
			{"sent after the first", metricAgainSent},
			{"downtime", metricDowntime}, {"total", metricTotal}, {"sent in all", metricLink},
			{"of layers", metricLayers},
			{"agent's memory", metricSourceMemory}, {"target's", metricTargetMemory},
		},
		ways: FilesWays(), size: metricTree,
	})
}
