package bench

import (
	"fmt"
	"math"
	"slices"
)

// Requirements of files.
const (
	firstFactor    = 1.1     // of the time for the bytes at the link's bandwidth
	fasterPlain    = 3       // times rsync's speed, for small files
	fasterFar      = 10      // times that of rsync over ssh, over a long link
	filesFreeze    = 0.100   // seconds that files add to a freeze
	byteSent       = 1 << 20 // bytes, for one changed byte
	thereTotal     = 1       // seconds, if the target has the image
	notThereFactor = 1.3     // of the time for an image's bytes
	storePreCopy   = 1       // seconds of downtime
	storeRestart   = 3       // the same
	agentMost      = 64 << 20
)

// judgeCopying compares the measurements of the suite files with the requirements. It does not judge
// metrics that were not measured.
func judgeCopying(rows []Row) []Asked {
	m := medians(rows)
	asked := slices.Concat(m.firstCopy(), m.filesFrozen(), m.images(), m.stores(), []Asked{m.agentMemory()})
	return slices.DeleteFunc(asked, func(a Asked) bool { return math.IsNaN(a.Value) || math.IsNaN(a.Limit) })
}

func (m medians) firstCopy() []Asked {
	faster := func(link, way string, times float64) Asked {
		a := Asked{
			What: fmt.Sprintf("first copy of %s, %s: at least %.0f x as fast as %s", workloadMany, link,
				times, way),
			Least: true, Limit: times,
			Value: m.of(workloadMany, link, way, metricFirst) / m.of(workloadMany, link, wayPreCopy,
				metricFirst),
		}
		a.Met = a.Value >= a.Limit
		return a
	}
	return []Asked{
		atMost(fmt.Sprintf("first copy of %s, %s: at most %.1f x bytes / bandwidth", workloadLarge, linkFast,
			firstFactor), m.of(workloadLarge, linkFast, wayPreCopy, metricFirst),
			firstFactor*m.of(workloadLarge, linkFast, wayPreCopy, metricTree)/bandwidthOf(linkFast)),
		faster(linkFast, wayRsyncTwice, fasterPlain), faster(linkFar, wayRsyncSSH, fasterFar),
	}
}

// filesFrozen judges how much files add to the freeze of a container with a single file.
func (m medians) filesFrozen() []Asked {
	var asked []Asked
	for _, workload := range []string{workloadMany, workloadByte} {
		added := m.downtime(workload, linkFast, wayPreCopy) - m.downtime(workloadOneFile, linkFast,
			wayPreCopy)
		what := fmt.Sprintf("pre-copy, %s, %s: files add at most %.0f ms to the freeze", workload, linkFast,
			filesFreeze*1e3)
		asked = append(asked, atMost(what, added, filesFreeze))
	}
	sent := atMost(fmt.Sprintf("pre-copy, %s: sent for it at most %s", workloadByte, size(byteSent)),
		m.of(workloadByte, linkFast, wayPreCopy, metricAgainSent), byteSent)
	sent.Unit = "bytes"
	return append(asked, sent)
}

func (m medians) images() []Asked {
	layers := atMost(fmt.Sprintf("cold, %s: no bytes of layers sent", workloadThere),
		m.of(workloadThere, linkStudyA, wayCold, metricLayers), 0)
	layers.Unit = "bytes"
	return []Asked{
		atMost(fmt.Sprintf("cold, %s, %s: total time at most %d s", workloadThere, linkStudyA, thereTotal),
			m.of(workloadThere, linkStudyA, wayCold, metricTotal), thereTotal),
		layers,
		atMost(fmt.Sprintf("cold, %s, %s: total time at most %.1f x bytes / bandwidth", workloadNotThere,
			linkFast, notThereFactor),
			m.of(workloadNotThere, linkFast, wayCold, metricTotal),
			notThereFactor*m.of(workloadNotThere, linkFast, wayCold, metricLayers)/bandwidthOf(linkFast)),
	}
}

func (m medians) stores() []Asked {
	downtime := func(mode, way string, most float64) Asked {
		return atMost(fmt.Sprintf("%s, %s, %s: downtime at most %.0f s", mode, workloadStore, linkStudyD,
			most), m.downtime(workloadStore, linkStudyD, way), most)
	}
	return []Asked{downtime("pre-copy", wayPreCopy, storePreCopy),
		downtime("restart", wayRestart, storeRestart)}
}

// agentMemory judges the largest memory of any agent in any of the medians.
func (m medians) agentMemory() Asked {
	most := math.NaN()
	for _, row := range m {
		if row.Median != nil && (row.Metric == metricSourceMemory || row.Metric == metricTargetMemory) &&
			!(*row.High <= most) {
			most = *row.High
		}
	}
	a := atMost(fmt.Sprintf("memory of an agent, whatever it copies: at most %s", size(agentMost)), most,
		agentMost)
	a.Unit = "bytes"
	return a
}
