package bench

import (
	"math"
	"slices"
	"strings"
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
func judgeStudies(rows []Row) []Asked {
	var asked []Asked
	seen := map[string]bool{}
	for _, row := range rows {
		if key := row.Workload + row.Link; !seen[key] {
			seen[key] = true
			asked = append(asked, judged{medians(rows), row.Workload, row.Link}.all()...)
		}
	}
	return slices.DeleteFunc(asked, func(a Asked) bool { return math.IsNaN(a.Value) || math.IsNaN(a.Limit) })
}

// judged is one workload over one link.
type judged struct {
	medians
	workload, link string
}

func (j judged) value(way, metric string) float64 { return j.of(j.workload, j.link, way, metric) }

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
func (j judged) atMost(what, way, metric string, limit float64) Asked {
	value := j.value(way, metric)
	a := Asked{What: j.workload + ", " + j.link + ": " + what, Way: way, Unit: unit(metric), Limit: limit,
		Value: value, Met: value <= limit}
	bound := map[string]string{metricDowntime: metricDowntimeLimit, metricTotal: metricTotalLimit}[metric]
	if reach := j.value(way, bound); !math.IsNaN(reach) {
		a.Reach = &reach
	}
	return a
}

// The automatic choice chooses among these ways; they count if it was not measured.
func (judged) ways() []string {
	return []string{wayAuto, wayPreCopy, wayPostCopy, wayHybrid}
}

func (judged) staged() []string { return []string{wayStagedAuto, wayStagedPreCopy, wayStagedHybrid} }

func (j judged) all() []Asked {
	study, name, _ := strings.Cut(strings.TrimPrefix(j.workload, "study "), ": ")
	switch {
	case study == "a" && name == busyboxApp().name:
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

func (j judged) busybox() []Asked {
	ways := append(j.ways(), wayCold)
	return []Asked{
		j.atMost("handoff", j.best(metricHandoff, ways...), metricHandoff, askedBusyboxHandoff),
		j.atMost("downtime", j.best(metricDowntime, ways...), metricDowntime, askedBusyboxDowntime),
	}
}

// recogniser may send as much as in the study, or as much as was written since it was staged, if that is
// less.
func (j judged) recogniser() []Asked {
	staged := j.best(metricSent, j.staged()...)
	most := j.value(wayStudy, metricSent)
	if written := j.value(staged, metricRaw); written < most {
		most = written
	}
	return []Asked{
		j.atMost("downtime", j.best(metricDowntime, j.ways()...), metricDowntime, askedFaceDowntime),
		j.atMost("downtime, staged", j.best(metricDowntime, j.staged()...), metricDowntime,
			askedFaceDowntime),
		j.atMost("sent in the handoff, staged, at most the study's and what was written", staged, metricSent,
			most),
	}
}

func (j judged) coap() []Asked {
	return []Asked{
		j.atMost("downtime, 20 times lower than cold's", j.best(metricDowntime, j.ways()...), metricDowntime,
			j.value(wayRsync, metricDowntime)/askedTimes),
		j.atMost("total time, at most 1.1 of cold's", j.best(metricTotal, j.ways()...), metricTotal,
			askedTotalFactor*j.value(wayRsync, metricTotal)),
		j.atMost("bytes, not compressed, at most cold's", j.best(metricUncompressed, j.ways()...),
			metricUncompressed, j.value(wayRsync, metricSent)),
	}
}

func (j judged) follow(name string) []Asked {
	total := map[string]float64{blankApp().name: askedBlankTotal, videoApp().name: askedVideoTotal}
	asked := []Asked{j.atMost("downtime", j.best(metricDowntime, j.ways()...), metricDowntime,
		askedFollowDowntime)}
	if workload, absent := strings.CutSuffix(name, imageNotThere); absent {
		name = workload
		asked = append(asked, j.atMost("total time", j.best(metricTotal, j.ways()...), metricTotal,
			total[name]))
	} else {
		asked = append(asked,
			j.atMost("downtime, staged", j.best(metricDowntime, j.staged()...), metricDowntime,
				askedFollowDowntime),
			j.atMost("total time, staged", j.best(metricTotal, j.staged()...), metricTotal, askedStagedTotal))
	}
	return append(asked, j.atMost("the picture stands still", j.best(metricStill, j.ways()...), metricStill,
		0))
}

func (j judged) broker() []Asked {
	none := j.value(wayStopRsync, metricDowntime) / askedTimes
	return []Asked{
		j.atMost("downtime, 20 times lower than with no checkpoint", j.best(metricDowntime, j.ways()...),
			metricDowntime, none),
	}
}
