package postcopy

import (
	"fmt"
	"math"
	"slices"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/memory"
)

// Requirements of post-copy.
const (
	followPerGibibyte = 0.040 // seconds of freeze
	followSlack       = 0.020 // seconds of freeze, beyond the smallest one's
	hybridFreeze      = 0.200 // seconds
	hybridFactor      = 1.1   // of the bytes of a pre-copy
	goodputPart       = 0.8   // of the link
	waitSlack         = 0.005 // seconds, beyond the round trip
	faultsPart        = 0.1   // of one for each page
	totalFactor       = 1.1   // of the total time of a cold migration
	partlyFreeze      = 0.5   // seconds
	partlyAnswer      = 3     // seconds
)

// judgeFollowing compares the measurements of the suite postcopy with the requirements. It does not judge
// metrics that were not measured.
func judgeFollowing(rows []results.Row) []results.Asked {
	m := results.Medians(rows)
	asked := slices.Concat(followingFreeze(m), followingPush(m), followingWhole(m))
	return slices.DeleteFunc(asked,
		func(a results.Asked) bool { return math.IsNaN(a.Value) || math.IsNaN(a.Limit) })
}

func followingFreeze(m results.Medians) []results.Asked {
	small := m.Downtime(workloadSmall, testbed.LinkFaster, moves.WayPostCopy)
	var asked []results.Asked
	for _, w := range []struct {
		name      string
		gibibytes float64
	}{{workload64, 1.0 / 16}, {workload1024, 1}, {workload1024Slow, 1}, {workload1024Fast, 1},
		{workload4096, 4}} {
		what := fmt.Sprintf("post-copy, %s: freeze at most that of %s + %.0f ms per GiB + %.0f ms", w.name,
			workloadSmall, followPerGibibyte*1e3, followSlack*1e3)
		asked = append(asked, results.AtMost(what, m.Downtime(w.name, testbed.LinkFaster, moves.WayPostCopy),
			small+followPerGibibyte*w.gibibytes+followSlack))
	}
	bytes := results.AtMost(fmt.Sprintf("hybrid, %s: sent at most %.1f x pre-copy's", workloadRewritten,
		hybridFactor),
		m.Of(workloadRewritten, testbed.LinkFast, moves.WayHybrid, results.Sent),
		hybridFactor*m.Of(workloadRewritten, testbed.LinkFast, moves.WayPreCopy, results.Sent))
	bytes.Unit = "bytes"
	return append(asked,
		results.AtMost(fmt.Sprintf("hybrid, %s: freeze at most %.0f ms", workloadRewritten, hybridFreeze*1e3),
			m.Downtime(workloadRewritten, testbed.LinkFast, moves.WayHybrid), hybridFreeze), bytes)
}

func followingPush(m results.Medians) []results.Asked {
	var asked []results.Asked
	for _, link := range []string{testbed.LinkFast, linkLong} {
		a := results.Asked{
			What: fmt.Sprintf("post-copy, %s, %s: goodput at least %.0f %% of the link", workloadLoaded,
				link, goodputPart*100),
			Unit: results.Unit(results.Goodput), Least: true, Limit: goodputPart * testbed.BandwidthOf(link),
			Value: m.Of(workloadLoaded, link, moves.WayPostCopy, results.Goodput),
		}
		a.Met = a.Value >= a.Limit
		asked = append(asked, a)
	}
	asked = append(asked,
		results.AtMost(fmt.Sprintf("post-copy, %s, %s: 99 %% of the waits for a page at most 1 "+
			"RTT + %.0f ms", workloadJumps, testbed.LinkMiddle, waitSlack*1e3),
			m.Of(workloadJumps, testbed.LinkMiddle, moves.WayPostCopy, metricWaitP99),
			testbed.RTTOf(testbed.LinkMiddle)+waitSlack))
	for _, name := range []string{workloadScans, workloadJumps} {
		a := results.AtMost(fmt.Sprintf("post-copy, %s, %s: faults per GiB at most %.1f for each page", name,
			testbed.LinkFast, faultsPart),
			m.Of(name, testbed.LinkFast, moves.WayPostCopy, metricFaultsPer),
			faultsPart*results.Gibi/float64(memory.PageSize()))
		a.Unit = ""
		asked = append(asked, a)
	}
	return asked
}

func followingWhole(m results.Medians) []results.Asked {
	return []results.Asked{
		results.AtMost(
			fmt.Sprintf("post-copy, %s, %s: total time at most %.1f x cold's", workloadFollowingFog,
				testbed.LinkMobility, totalFactor),
			m.Of(workloadFollowingFog, testbed.LinkMobility, moves.WayPostCopy, results.Total),
			totalFactor*m.Of(workloadFollowingFog, testbed.LinkMobility, moves.WayCold, results.Total)),
		results.AtMost(
			fmt.Sprintf("hybrid, %s, %s: freeze at most %.1f s", workloadPartly, testbed.LinkSlow,
				partlyFreeze),
			m.Downtime(workloadPartly, testbed.LinkSlow, moves.WayHybrid), partlyFreeze),
		results.AtMost(fmt.Sprintf("hybrid, %s, %s: answers with all that is hot within %d s", workloadPartly,
			testbed.LinkSlow, partlyAnswer),
			m.Of(workloadPartly, testbed.LinkSlow, moves.WayHybrid, metricAnswered), partlyAnswer),
	}
}
