package studies

import (
	"math"
	"slices"
	"strings"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/services"
)

// Requirements beyond the studies' figures.
const (
	askedBusyboxHandoff  = 0.4
	askedBusyboxDowntime = 0.2
	askedFaceDowntime    = 0.5
	askedTimes           = 20 // times lower than cold's, or than without a checkpoint
	askedTotalFactor     = 1.1
	askedFollowDowntime  = 0.1
	askedBlankTotal      = 6
	askedVideoTotal      = 8
	askedStagedTotal     = 1
)

// judgeStudies compares the measurements with the requirements. It does not judge metrics that were not
// measured.
func judgeStudies(rows []results.Row) []results.Asked {
	var asked []results.Asked
	seen := map[string]bool{}
	for _, row := range rows {
		if key := row.Workload + row.Link; !seen[key] {
			seen[key] = true
			asked = append(asked, judged{results.Medians(rows), row.Workload, row.Link}.all()...)
		}
	}
	return slices.DeleteFunc(asked,
		func(a results.Asked) bool { return math.IsNaN(a.Value) || math.IsNaN(a.Limit) })
}

// judged is one workload over one link.
type judged struct {
	results.Medians
	workload, link string
}

func (j judged) value(way, metric string) float64 { return j.Of(j.workload, j.link, way, metric) }

// best returns the way with the lowest value, if the first one, the automatic choice, was not measured.
func (j judged) best(metric string, ways ...string) (way string) {
	for _, one := range ways {
		switch value := j.value(one, metric); {
		case math.IsNaN(value):
		case one == ways[0]:
			return one
		case way == "" || value < j.value(way, metric):
			way = one
		}
	}
	return way
}

// atMost judges a metric of a way. A time is shown beside the minimum for the bytes that were sent.
func (j judged) atMost(what, way, metric string, limit float64) results.Asked {
	value := j.value(way, metric)
	a := results.Asked{What: j.workload + ", " + j.link + ": " + what, Way: way, Unit: results.Unit(metric),
		Limit: limit,
		Value: value, Met: value <= limit}
	bound := map[string]string{results.Downtime: metricDowntimeLimit, results.Total: metricTotalLimit}[metric]
	if reach := j.value(way, bound); !math.IsNaN(reach) {
		a.Reach = &reach
	}
	return a
}

// The automatic choice chooses among these ways; they count if it was not measured.
func (judged) ways() []string {
	return []string{moves.WayAuto, moves.WayPreCopy, moves.WayPostCopy, moves.WayHybrid}
}

func (judged) staged() []string { return []string{wayStagedAuto, wayStagedPreCopy, wayStagedHybrid} }

func (j judged) all() []results.Asked {
	study, name, _ := strings.Cut(strings.TrimPrefix(j.workload, "study "), ": ")
	switch {
	case study == "a" && name == services.Busybox().Name:
		return j.busybox()
	case study == "a":
		return j.recogniser()
	case study == "b":
		return j.coap()
	case study == "c":
		return j.follow(name)
	case study == "d":
		return j.broker()
	}
	return nil
}

func (j judged) busybox() []results.Asked {
	ways := append(j.ways(), moves.WayCold)
	return []results.Asked{
		j.atMost("handoff", j.best(results.Handoff, ways...), results.Handoff, askedBusyboxHandoff),
		j.atMost("downtime", j.best(results.Downtime, ways...), results.Downtime, askedBusyboxDowntime),
	}
}

// recogniser may send as much as in the study, or as much as was written since it was staged, if that is
// less.
func (j judged) recogniser() []results.Asked {
	staged := j.best(results.Sent, j.staged()...)
	most := j.value(wayStudy, results.Sent)
	if written := j.value(staged, results.Raw); written < most {
		most = written
	}
	return []results.Asked{
		j.atMost("downtime", j.best(results.Downtime, j.ways()...), results.Downtime, askedFaceDowntime),
		j.atMost("downtime, staged", j.best(results.Downtime, j.staged()...), results.Downtime,
			askedFaceDowntime),
		j.atMost("sent in the handoff, staged, at most the study's and what was written", staged,
			results.Sent,
			most),
	}
}

func (j judged) coap() []results.Asked {
	return []results.Asked{
		j.atMost("downtime, 20 times lower than cold's", j.best(results.Downtime, j.ways()...),
			results.Downtime,
			j.value(moves.WayRsync, results.Downtime)/askedTimes),
		j.atMost("total time, at most 1.1 of cold's", j.best(results.Total, j.ways()...), results.Total,
			askedTotalFactor*j.value(moves.WayRsync, results.Total)),
		j.atMost("bytes, not compressed, at most cold's", j.best(results.Uncompressed, j.ways()...),
			results.Uncompressed, j.value(moves.WayRsync, results.Sent)),
	}
}

func (j judged) follow(name string) []results.Asked {
	total := map[string]float64{services.Blank().Name: askedBlankTotal,
		services.Video().Name: askedVideoTotal}
	asked := []results.Asked{j.atMost("downtime", j.best(results.Downtime, j.ways()...), results.Downtime,
		askedFollowDowntime)}
	if workload, absent := strings.CutSuffix(name, imageNotThere); absent {
		name = workload
		asked = append(asked, j.atMost("total time", j.best(results.Total, j.ways()...), results.Total,
			total[name]))
	} else {
		asked = append(asked,
			j.atMost("downtime, staged", j.best(results.Downtime, j.staged()...), results.Downtime,
				askedFollowDowntime),
			j.atMost("total time, staged", j.best(results.Total, j.staged()...), results.Total,
				askedStagedTotal))
	}
	return append(asked, j.atMost("the picture stands still", j.best(metricStill, j.ways()...), metricStill,
		0))
}

func (j judged) broker() []results.Asked {
	none := j.value(wayStopRsync, results.Downtime) / askedTimes
	return []results.Asked{
		j.atMost("downtime, 20 times lower than with no checkpoint", j.best(results.Downtime, j.ways()...),
			results.Downtime, none),
	}
}
