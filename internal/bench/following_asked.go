package bench

import (
	"fmt"
	"math"
	"slices"

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
func judgeFollowing(rows []Row) []Asked {
	m := medians(rows)
	asked := slices.Concat(m.followingFreeze(), m.followingPush(), m.followingWhole())
	return slices.DeleteFunc(asked, func(a Asked) bool { return math.IsNaN(a.Value) || math.IsNaN(a.Limit) })
}

func (m medians) followingFreeze() []Asked {
	small := m.downtime(workloadSmall, linkFaster, wayPostCopy)
	var asked []Asked
	for _, w := range []struct {
		name      string
		gibibytes float64
	}{{workload64, 1.0 / 16}, {workload1024, 1}, {workload1024Slow, 1}, {workload1024Fast, 1},
		{workload4096, 4}} {
		what := fmt.Sprintf("post-copy, %s: freeze at most that of %s + %.0f ms per GiB + %.0f ms", w.name,
			workloadSmall, followPerGibibyte*1e3, followSlack*1e3)
		asked = append(asked, atMost(what, m.downtime(w.name, linkFaster, wayPostCopy),
			small+followPerGibibyte*w.gibibytes+followSlack))
	}
	bytes := atMost(fmt.Sprintf("hybrid, %s: sent at most %.1f x pre-copy's", workloadRewritten,
		hybridFactor),
		m.of(workloadRewritten, linkFast, wayHybrid, metricSent),
		hybridFactor*m.of(workloadRewritten, linkFast, wayPreCopy, metricSent))
	bytes.Unit = "bytes"
	return append(asked,
		atMost(fmt.Sprintf("hybrid, %s: freeze at most %.0f ms", workloadRewritten, hybridFreeze*1e3),
			m.downtime(workloadRewritten, linkFast, wayHybrid), hybridFreeze), bytes)
}

func (m medians) followingPush() []Asked {
	var asked []Asked
	for _, link := range []string{linkFast, linkLong} {
		a := Asked{
			What: fmt.Sprintf("post-copy, %s, %s: goodput at least %.0f %% of the link", workloadLoaded,
				link, goodputPart*100),
			Unit: unit(metricGoodput), Least: true, Limit: goodputPart * bandwidthOf(link),
			Value: m.of(workloadLoaded, link, wayPostCopy, metricGoodput),
		}
		a.Met = a.Value >= a.Limit
		asked = append(asked, a)
	}
	asked = append(asked, atMost(fmt.Sprintf("post-copy, %s, %s: 99 %% of the waits for a page at most 1 "+
		"RTT + %.0f ms", workloadJumps, linkMiddle, waitSlack*1e3),
		m.of(workloadJumps, linkMiddle, wayPostCopy, metricWaitP99), rttOf(linkMiddle)+waitSlack))
	for _, name := range []string{workloadScans, workloadJumps} {
		a := atMost(fmt.Sprintf("post-copy, %s, %s: faults per GiB at most %.1f for each page", name,
			linkFast, faultsPart),
			m.of(name, linkFast, wayPostCopy, metricFaultsPer), faultsPart*gibi/float64(memory.PageSize()))
		a.Unit = ""
		asked = append(asked, a)
	}
	return asked
}

func (m medians) followingWhole() []Asked {
	return []Asked{
		atMost(fmt.Sprintf("post-copy, %s, %s: total time at most %.1f x cold's", workloadFollowingFog,
			linkMobility, totalFactor), m.of(workloadFollowingFog, linkMobility, wayPostCopy, metricTotal),
			totalFactor*m.of(workloadFollowingFog, linkMobility, wayCold, metricTotal)),
		atMost(fmt.Sprintf("hybrid, %s, %s: freeze at most %.1f s", workloadPartly, linkSlow, partlyFreeze),
			m.downtime(workloadPartly, linkSlow, wayHybrid), partlyFreeze),
		atMost(fmt.Sprintf("hybrid, %s, %s: answers with all that is hot within %d s", workloadPartly,
			linkSlow, partlyAnswer), m.of(workloadPartly, linkSlow, wayHybrid, metricAnswered), partlyAnswer),
	}
}
