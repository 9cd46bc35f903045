package switchover

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
)

// Requirements of a switchover.
const (
	floorFactor    = 1.2   // cold: of the floor: what the path across the network may add
	tinyDowntime   = 0.150 // cold: seconds, on the fast link
	distantRTTs    = 1.5   // cold: on the link with the long delay, on top of the floor
	transferFactor = 1.15  // cold: of the time for the bytes at the link's bandwidth

	preCopyFloorFactor = 0.75  // of the floor: memory and most other data is there before the freeze
	preCopyTiny        = 0.090 // seconds, on the fast link
	preCopySlack       = 0.060 // seconds, beyond the tiny one's
	perGibibyte        = 0.040 // seconds, of idle memory
	roundsFactor       = 1.2   // of the time for the bytes: what the rounds may add in total
	fogFactor          = 1.3   // of the memory: bytes that may be sent of memory that is written meanwhile
	growthFactor       = 1.1   // of the source's memory: allowed memory at the target
	onceFactor         = 1.05  // of the source's memory: bytes that may be sent of pages that are sent once
	studySlow          = 48.1  // seconds: study A's downtime of OpenFace at 5 Mbit/s
)

// judge compares measurements with the requirements. It does not judge metrics that were not measured.
func judge(rows []results.Row) []results.Asked {
	m := results.Medians(rows)
	asked := slices.Concat(cold(m), preCopy(m), preCopyBytes(m))
	return slices.DeleteFunc(asked,
		func(a results.Asked) bool { return math.IsNaN(a.Value) || math.IsNaN(a.Limit) })
}

// cold judges a move in one freeze.
func cold(m results.Medians) []results.Asked {
	fast := m.Downtime(moves.WorkloadTiny, testbed.LinkFast, moves.WayCold)
	asked := []results.Asked{
		results.AtMost(
			fmt.Sprintf("cold, tiny, %s: downtime at most %.1f x floor", testbed.LinkFast, floorFactor),
			fast, floorFactor*m.Downtime(moves.WorkloadTiny, testbed.LinkFast, moves.WayFloor)),
		results.AtMost(
			fmt.Sprintf("cold, tiny, %s: downtime at most %.0f ms", testbed.LinkFast, tinyDowntime*1e3),
			fast,
			tinyDowntime),
		results.AtMost(
			fmt.Sprintf("cold, tiny, %s: downtime at most %.1f x floor + %.1f RTT", testbed.LinkDistant,
				floorFactor, distantRTTs), m.Downtime(moves.WorkloadTiny, testbed.LinkDistant, moves.WayCold),
			floorFactor*m.Downtime(moves.WorkloadTiny, testbed.LinkDistant,
				moves.WayFloor)+distantRTTs*testbed.RTTOf(testbed.LinkDistant)),
	}
	for _, link := range []string{testbed.LinkFast, testbed.LinkMiddle, testbed.LinkDistant} {
		for _, way := range []string{moves.WayCold, moves.WayPreCopy} {
			what := fmt.Sprintf("%s, redis, %s: client's longest gap beyond the downtime at most 1 RTT + "+
				"%.0f ms",
				strings.TrimPrefix(way, "godwit "), link, results.GapSlack*1e3)
			asked = append(asked, results.AtMost(what, m.Of(moves.WorkloadRedis, link, way, results.Beyond),
				testbed.RTTOf(link)+results.GapSlack))
		}
		what := fmt.Sprintf("cold, redis, %s: downtime at most %.2f x (bytes / bandwidth) + tiny's downtime",
			link, transferFactor)
		needed := m.Of(moves.WorkloadRedis, link, moves.WayCold, results.Sent) / testbed.BandwidthOf(link)
		asked = append(asked, results.AtMost(what, m.Downtime(moves.WorkloadRedis, link, moves.WayCold),
			transferFactor*needed+m.Downtime(moves.WorkloadTiny, link, moves.WayCold)))
	}
	return asked
}

// preCopy judges the freeze, and the whole time.
func preCopy(m results.Medians) []results.Asked {
	tiny := m.Downtime(moves.WorkloadTiny, testbed.LinkFast, moves.WayPreCopy)
	written := m.Of(workloadBusy, testbed.LinkFast, moves.WayPreCopy,
		results.Frozen) / testbed.BandwidthOf(testbed.LinkFast)
	asked := []results.Asked{
		results.AtMost(
			fmt.Sprintf("pre-copy, tiny, %s: downtime at most %.2f x floor", testbed.LinkFast,
				preCopyFloorFactor),
			tiny, preCopyFloorFactor*m.Downtime(moves.WorkloadTiny, testbed.LinkFast, moves.WayFloor)),
		results.AtMost(
			fmt.Sprintf("pre-copy, tiny, %s: downtime at most %.0f ms", testbed.LinkFast, preCopyTiny*1e3),
			tiny,
			preCopyTiny),
		results.AtMost(
			fmt.Sprintf("pre-copy, %s, %s: downtime at most tiny's + dirty bytes / bandwidth + %.0f ms",
				workloadBusy, testbed.LinkFast, preCopySlack*1e3),
			m.Downtime(workloadBusy, testbed.LinkFast, moves.WayPreCopy), tiny+written+preCopySlack),
		results.AtMost(
			fmt.Sprintf("pre-copy, %s, %s: downtime at most tiny's + %.0f ms", workloadShared,
				testbed.LinkFast,
				preCopySlack*1e3), m.Downtime(workloadShared, testbed.LinkFast, moves.WayPreCopy),
			tiny+preCopySlack),
	}
	for _, idle := range []struct {
		workload, link string
		gibibytes      float64
	}{{workloadIdle1024, testbed.LinkFast, 1}, {workloadIdle4096, testbed.LinkFaster, 4}} {
		what := fmt.Sprintf("pre-copy, %s: downtime at most tiny's + %.0f ms per GiB", idle.workload,
			perGibibyte*1e3)
		asked = append(asked, results.AtMost(what, m.Downtime(idle.workload, idle.link, moves.WayPreCopy),
			tiny+perGibibyte*idle.gibibytes))
	}
	return append(asked,
		results.AtMost(
			fmt.Sprintf("pre-copy, %s, %s: total time at most %.1f x bytes / bandwidth", workloadIdle1024,
				testbed.LinkFast, roundsFactor),
			m.Of(workloadIdle1024, testbed.LinkFast, moves.WayPreCopy, results.Total),
			roundsFactor*results.Gibi/testbed.BandwidthOf(testbed.LinkFast)),
		results.AtMost(
			fmt.Sprintf("pre-copy, %s, %s: downtime at most study A's", workloadRecogniser, testbed.LinkSlow),
			m.Downtime(workloadRecogniser, testbed.LinkSlow, moves.WayPreCopy), studySlow))
}

// preCopyBytes judges the bytes sent, and the memory at the target.
func preCopyBytes(m results.Medians) []results.Asked {
	bytes := func(what string, value, limit float64) results.Asked {
		a := results.AtMost(what, value, limit)
		a.Unit = "bytes"
		return a
	}
	sent := func(workload,
		link string) float64 {
		return m.Of(workload, link, moves.WayPreCopy, results.Sent)
	}
	growth := results.AtMost(fmt.Sprintf("pre-copy, %s: memory at the target at most %.1f x the source's",
		workloadForked, growthFactor),
		m.Of(workloadForked, testbed.LinkFast, moves.WayPreCopy, results.Growth),
		growthFactor)
	growth.Unit = "ratio"
	return []results.Asked{
		growth,
		bytes(fmt.Sprintf("pre-copy, %s: sent at most %.2f x the source's memory", workloadForked,
			onceFactor),
			sent(workloadForked, testbed.LinkFast),
			onceFactor*m.Of(workloadForked, testbed.LinkFast, moves.WayPreCopy, results.Memory)),
		bytes(fmt.Sprintf("pre-copy, %s, %s: sent at most %.1f x its memory", workloadFog,
			testbed.LinkMobility,
			fogFactor), sent(workloadFog, testbed.LinkMobility), fogFactor*moves.FogBytes),
		bytes(fmt.Sprintf("pre-copy, %s, %s: sent less than its memory", workloadFogHalf,
			testbed.LinkMobility),
			sent(workloadFogHalf, testbed.LinkMobility), moves.FogBytes),
	}
}
