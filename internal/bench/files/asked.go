package files

import (
	"fmt"
	"math"
	"slices"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
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
func judgeCopying(rows []results.Row) []results.Asked {
	m := results.Medians(rows)
	asked := slices.Concat(firstCopy(m), filesFrozen(m), images(m), stores(m),
		[]results.Asked{agentMemory(m)})
	return slices.DeleteFunc(asked,
		func(a results.Asked) bool { return math.IsNaN(a.Value) || math.IsNaN(a.Limit) })
}

func firstCopy(m results.Medians) []results.Asked {
	faster := func(link, way string, times float64) results.Asked {
		a := results.Asked{
			What: fmt.Sprintf("first copy of %s, %s: at least %.0f x as fast as %s", workloadMany, link,
				times, way),
			Least: true, Limit: times,
			Value: m.Of(workloadMany, link, way, metricFirst) / m.Of(workloadMany, link, moves.WayPreCopy,
				metricFirst),
		}
		a.Met = a.Value >= a.Limit
		return a
	}
	return []results.Asked{
		results.AtMost(
			fmt.Sprintf("first copy of %s, %s: at most %.1f x bytes / bandwidth", workloadLarge,
				testbed.LinkFast,
				firstFactor), m.Of(workloadLarge, testbed.LinkFast, moves.WayPreCopy, metricFirst),
			firstFactor*m.Of(workloadLarge, testbed.LinkFast, moves.WayPreCopy,
				metricTree)/testbed.BandwidthOf(testbed.LinkFast)),
		faster(testbed.LinkFast, wayRsyncTwice, fasterPlain), faster(linkFar, wayRsyncSSH, fasterFar),
	}
}

// filesFrozen judges how much files add to the freeze of a container with a single file.
func filesFrozen(m results.Medians) []results.Asked {
	var asked []results.Asked
	for _, workload := range []string{workloadMany, workloadByte} {
		added := m.Downtime(workload, testbed.LinkFast, moves.WayPreCopy) - m.Downtime(workloadOneFile,
			testbed.LinkFast,
			moves.WayPreCopy)
		what := fmt.Sprintf("pre-copy, %s, %s: files add at most %.0f ms to the freeze", workload,
			testbed.LinkFast,
			filesFreeze*1e3)
		asked = append(asked, results.AtMost(what, added, filesFreeze))
	}
	sent := results.AtMost(
		fmt.Sprintf("pre-copy, %s: sent for it at most %s", workloadByte, results.Size(byteSent)),
		m.Of(workloadByte, testbed.LinkFast, moves.WayPreCopy, metricAgainSent), byteSent)
	sent.Unit = "bytes"
	return append(asked, sent)
}

func images(m results.Medians) []results.Asked {
	layers := results.AtMost(fmt.Sprintf("cold, %s: no bytes of layers sent", workloadThere),
		m.Of(workloadThere, linkStudyA, moves.WayCold, results.Layers), 0)
	layers.Unit = "bytes"
	return []results.Asked{
		results.AtMost(
			fmt.Sprintf("cold, %s, %s: total time at most %d s", workloadThere, linkStudyA, thereTotal),
			m.Of(workloadThere, linkStudyA, moves.WayCold, results.Total), thereTotal),
		layers,
		results.AtMost(
			fmt.Sprintf("cold, %s, %s: total time at most %.1f x bytes / bandwidth", workloadNotThere,
				testbed.LinkFast, notThereFactor),
			m.Of(workloadNotThere, testbed.LinkFast, moves.WayCold, results.Total),
			notThereFactor*m.Of(workloadNotThere, testbed.LinkFast, moves.WayCold,
				results.Layers)/testbed.BandwidthOf(testbed.LinkFast)),
	}
}

func stores(m results.Medians) []results.Asked {
	downtime := func(mode, way string, most float64) results.Asked {
		return results.AtMost(
			fmt.Sprintf("%s, %s, %s: downtime at most %.0f s", mode, workloadStore, testbed.LinkStudyD,
				most), m.Downtime(workloadStore, testbed.LinkStudyD, way), most)
	}
	return []results.Asked{downtime("pre-copy", moves.WayPreCopy, storePreCopy),
		downtime("restart", moves.WayRestart, storeRestart)}
}

// agentMemory judges the largest memory of any agent in any of the medians.
func agentMemory(m results.Medians) results.Asked {
	most := math.NaN()
	for _, row := range m {
		if row.Median != nil && (row.Metric == metricSourceMemory || row.Metric == metricTargetMemory) &&
			!(*row.High <= most) {
			most = *row.High
		}
	}
	a := results.AtMost(
		fmt.Sprintf("memory of an agent, whatever it copies: at most %s", results.Size(agentMost)), most,
		agentMost)
	a.Unit = "bytes"
	return a
}
