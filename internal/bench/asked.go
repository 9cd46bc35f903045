package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Requirements of a switchover.
const (
	floorFactor    = 1.2   // cold: of the floor: what the path across the network may add
	tinyDowntime   = 0.150 // cold: seconds, on the fast link
	distantRTTs    = 1.5   // cold: on the link with the long delay, on top of the floor
	gapSlack       = 0.020 // seconds, of the client's gap beyond the downtime and a round trip
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

// medians looks up the median of a metric; NaN if it was not measured.
type medians []Row

func (m medians) of(workload, link, way, metric string) float64 {
	if row := find(m, workload, link, way, metric); row != nil {
		return *row.Median
	}
	return math.NaN()
}

func (m medians) downtime(workload, link, way string) float64 {
	return m.of(workload, link, way, metricDowntime)
}

// judge compares measurements with the requirements. It does not judge metrics that were not measured.
func judge(rows []Row) []Asked {
	m := medians(rows)
	asked := slices.Concat(m.cold(), m.preCopy(), m.preCopyBytes())
	return slices.DeleteFunc(asked, func(a Asked) bool { return math.IsNaN(a.Value) || math.IsNaN(a.Limit) })
}

// bandwidthOf and rttOf return the properties of a link of the suite, in bytes per second and seconds.
func bandwidthOf(link string) float64 {
	shape, err := parseLink(link)
	if err != nil {
		return math.NaN()
	}
	return float64(shape.BandwidthBitsPerSecond) / 8
}

func rttOf(link string) float64 {
	shape, err := parseLink(link)
	if err != nil {
		return math.NaN()
	}
	return shape.RTT.Seconds()
}

// cold judges a move in one freeze.
func (m medians) cold() []Asked {
	fast := m.downtime(workloadTiny, linkFast, wayCold)
	asked := []Asked{
		atMost(fmt.Sprintf("cold, tiny, %s: downtime at most %.1f x floor", linkFast, floorFactor),
			fast, floorFactor*m.downtime(workloadTiny, linkFast, wayFloor)),
		atMost(fmt.Sprintf("cold, tiny, %s: downtime at most %.0f ms", linkFast, tinyDowntime*1e3), fast,
			tinyDowntime),
		atMost(fmt.Sprintf("cold, tiny, %s: downtime at most %.1f x floor + %.1f RTT", linkDistant,
			floorFactor, distantRTTs), m.downtime(workloadTiny, linkDistant, wayCold),
			floorFactor*m.downtime(workloadTiny, linkDistant, wayFloor)+distantRTTs*rttOf(linkDistant)),
	}
	for _, link := range []string{linkFast, linkMiddle, linkDistant} {
		for _, way := range []string{wayCold, wayPreCopy} {
			what := fmt.Sprintf("%s, redis, %s: client's longest gap beyond the downtime at most 1 RTT + "+
				"%.0f ms",
				strings.TrimPrefix(way, "godwit "), link, gapSlack*1e3)
			asked = append(asked, atMost(what, m.of(workloadRedis, link, way, metricBeyond),
				rttOf(link)+gapSlack))
		}
		what := fmt.Sprintf("cold, redis, %s: downtime at most %.2f x (bytes / bandwidth) + tiny's downtime",
			link, transferFactor)
		needed := m.of(workloadRedis, link, wayCold, metricSent) / bandwidthOf(link)
		asked = append(asked, atMost(what, m.downtime(workloadRedis, link, wayCold),
			transferFactor*needed+m.downtime(workloadTiny, link, wayCold)))
	}
	return asked
}

// preCopy judges the freeze, and the whole time.
func (m medians) preCopy() []Asked {
	tiny := m.downtime(workloadTiny, linkFast, wayPreCopy)
	written := m.of(workloadBusy, linkFast, wayPreCopy, metricFrozen) / bandwidthOf(linkFast)
	asked := []Asked{
		atMost(fmt.Sprintf("pre-copy, tiny, %s: downtime at most %.2f x floor", linkFast, preCopyFloorFactor),
			tiny, preCopyFloorFactor*m.downtime(workloadTiny, linkFast, wayFloor)),
		atMost(fmt.Sprintf("pre-copy, tiny, %s: downtime at most %.0f ms", linkFast, preCopyTiny*1e3), tiny,
			preCopyTiny),
		atMost(fmt.Sprintf("pre-copy, %s, %s: downtime at most tiny's + dirty bytes / bandwidth + %.0f ms",
			workloadBusy, linkFast, preCopySlack*1e3),
			m.downtime(workloadBusy, linkFast, wayPreCopy), tiny+written+preCopySlack),
		atMost(fmt.Sprintf("pre-copy, %s, %s: downtime at most tiny's + %.0f ms", workloadShared, linkFast,
			preCopySlack*1e3), m.downtime(workloadShared, linkFast, wayPreCopy), tiny+preCopySlack),
	}
	for _, idle := range []struct {
		workload, link string
		gibibytes      float64
	}{{workloadIdle1024, linkFast, 1}, {workloadIdle4096, linkFaster, 4}} {
		what := fmt.Sprintf("pre-copy, %s: downtime at most tiny's + %.0f ms per GiB", idle.workload,
			perGibibyte*1e3)
		asked = append(asked, atMost(what, m.downtime(idle.workload, idle.link, wayPreCopy),
			tiny+perGibibyte*idle.gibibytes))
	}
	return append(asked,
		atMost(fmt.Sprintf("pre-copy, %s, %s: total time at most %.1f x bytes / bandwidth", workloadIdle1024,
			linkFast, roundsFactor),
			m.of(workloadIdle1024, linkFast, wayPreCopy, metricTotal),
			roundsFactor*gibi/bandwidthOf(linkFast)),
		atMost(fmt.Sprintf("pre-copy, %s, %s: downtime at most study A's", workloadRecogniser, linkSlow),
			m.downtime(workloadRecogniser, linkSlow, wayPreCopy), studySlow))
}

// preCopyBytes judges the bytes sent, and the memory at the target.
func (m medians) preCopyBytes() []Asked {
	bytes := func(what string, value, limit float64) Asked {
		a := atMost(what, value, limit)
		a.Unit = "bytes"
		return a
	}
	sent := func(workload, link string) float64 { return m.of(workload, link, wayPreCopy, metricSent) }
	growth := atMost(fmt.Sprintf("pre-copy, %s: memory at the target at most %.1f x the source's",
		workloadForked, growthFactor), m.of(workloadForked, linkFast, wayPreCopy, metricGrowth), growthFactor)
	growth.Unit = "ratio"
	return []Asked{
		growth,
		bytes(fmt.Sprintf("pre-copy, %s: sent at most %.2f x the source's memory", workloadForked,
			onceFactor),
			sent(workloadForked, linkFast),
			onceFactor*m.of(workloadForked, linkFast, wayPreCopy, metricMemory)),
		bytes(fmt.Sprintf("pre-copy, %s, %s: sent at most %.1f x its memory", workloadFog, linkMobility,
			fogFactor), sent(workloadFog, linkMobility), fogFactor*fogBytes),
		bytes(fmt.Sprintf("pre-copy, %s, %s: sent less than its memory", workloadFogHalf, linkMobility),
			sent(workloadFogHalf, linkMobility), fogBytes),
	}
}

// atMost judges seconds.
func atMost(what string, value, limit float64) Asked {
	return Asked{What: what, Unit: "seconds", Limit: limit, Value: value, Met: value <= limit}
}

// demand is a requirement for one metric of an experiment: that its median is at most, or at least, a
// value.
type demand struct {
	what   string
	metric string
	most   float64
	least  float64
}

func (e experiment) judge(rows []Row) []Asked {
	asked := []Asked{}
	for _, d := range e.asked {
		value := medians(rows).of(e.name, "", e.way, d.metric)
		if math.IsNaN(value) {
			continue
		}
		a := Asked{What: d.what, Unit: unit(d.metric), Limit: d.most, Value: value, Met: value <= d.most}
		if d.least > 0 {
			a.Least, a.Limit, a.Met = true, d.least, value >= d.least
		}
		asked = append(asked, a)
	}
	return asked
}

// metricUnits are the suffixes of the names of metrics. Of two that match, the longer one comes first.
var metricUnits = [...]string{"bytes_per_second", "writes_per_second", "seconds", "bytes", "ratio"}

// unit returns the unit of a metric.
func unit(metric string) string {
	for _, u := range metricUnits {
		if strings.HasSuffix(metric, "_"+u) {
			return u
		}
	}
	return ""
}
