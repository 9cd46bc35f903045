package bench

import (
	"math"
	"slices"
	"strings"
)

// published is a figure of a study.
type published struct {
	study, app, link, way string
	measured              []measurement
}

const (
	wayStudy = "published"
	mega     = 1e6
)

// publishedFigures are those of Ma et al. (IEEE TMC 2019, A), Addad et al. (C) and Souza Junior et al. (CloudCom 2020, D).
// Puliafito et al. (Sensors 2019, B) has its figures in charts only. D's bandwidth is not told with them: with 400 MB in
// 40 s it was about 100 Mbit/s.
func publishedFigures() []published {
	handoff := func(seconds, down, before, sent float64) []measurement {
		return []measurement{{metricDowntime, down}, {metricHandoff, seconds}, {metricStageBytes, before * mega}, {metricSent, sent * mega}}
	}
	follow := func(downMilliseconds, total float64) []measurement {
		return []measurement{{metricDowntime, downMilliseconds / 1e3}, {metricTotal, total}}
	}
	face, video, blank, rabbit := recogniserApp().name, videoApp().name, blankApp().name, "rabbitmq"
	all := []published{
		{"a", face, linkStudyA5, wayStudy, handoff(48.9, 48.1, 115.2, 22.6)},
		{"a", face, linkStudyA10, wayStudy, handoff(28.5, 27.9, 119.4, 22.2)},
		{"a", face, linkStudyA20, wayStudy, handoff(17.8, 17.3, 116.0, 21.2)},
		{"a", face, linkStudyA50, wayStudy, handoff(13.4, 12.8, 115.2, 23.2)},
		{"a", face, linkStudyA100, wayStudy, handoff(10.7, 10.1, 117.2, 21.6)},
		{"a", face, linkStudyA500, wayStudy, handoff(10.9, 10.3, 117.4, 23.0)},
		{"c", blank, linkFast, wayStudy + ", tmpfs", follow(1043, 16.4)},
		{"c", blank, linkFast, wayStudy + ", disk-less", follow(1152, 16.0)},
		{"c", blank, linkFast, wayStudy + ", shared", follow(1825, 2.83)},
		{"c", video, linkFast, wayStudy + ", tmpfs", follow(1282, 28.8)},
		{"c", video, linkFast, wayStudy + ", disk-less", follow(1465, 27.8)},
		{"c", video, linkFast, wayStudy + ", shared", follow(2454, 3.68)},
		{"d", rabbit, linkStudyD100, wayStudy + ", no checkpoint", []measurement{{metricDowntime, 40}}},
		{"d", rabbit, linkStudyD100, wayStudy + ", 1 checkpoint", []measurement{{metricDowntime, 10}}},
	}
	for _, link := range []string{linkStudyA5, linkStudyA10, linkStudyA20, linkStudyA50, linkStudyA100, linkStudyA500} {
		all = append(all, published{"a", busyboxApp().name, link, wayStudy, handoff(3.1, 2.7, 0.01, 0.03)})
	}
	return all
}

// withPublished puts the studies' figures before what was measured of the same workload over the same link.
func withPublished(rows []Row) []Row {
	var all []Row
	var last Row
	for _, row := range rows {
		if row.Workload != last.Workload || row.Link != last.Link {
			all = append(all, publishedOf(row.Workload, row.Link)...)
		}
		all, last = append(all, row), row
	}
	return all
}

func publishedOf(workload, link string) []Row {
	var rows []Row
	for _, p := range publishedFigures() {
		t := trial{study: p.study, app: app{name: p.app}}
		if t.title() != workload || p.link != link {
			continue
		}
		for _, m := range p.measured {
			value := m.value
			rows = append(rows, Row{
				Workload: workload, Link: link, Way: p.way, Metric: m.metric, Samples: []float64{}, Median: &value, Low: &value, High: &value,
			})
		}
	}
	return rows
}

// What is asked, beside the studies' figures.
const (
	askedBusyboxHandoff  = 0.4
	askedBusyboxDowntime = 0.2
	askedFaceDowntime    = 0.5
	askedTimes           = 20 // lower than cold's, or than with no checkpoint
	askedTotalFactor     = 1.1
	askedFollowDowntime  = 0.1
	askedBlankTotal      = 6
	askedVideoTotal      = 8
	askedStagedTotal     = 1
)

// best is the lowest of Godwit's ways, or that of the automatic choice if it was measured.
func (m medians) best(workload, link, metric string, ways ...string) float64 {
	if value := m.of(workload, link, wayAuto, metric); !math.IsNaN(value) {
		return value
	}
	lowest := math.NaN()
	for _, way := range ways {
		if value := m.of(workload, link, way, metric); !math.IsNaN(value) && !(value >= lowest) {
			lowest = value
		}
	}
	return lowest
}

// judgeStudies compares with what is asked. What was not measured is not judged.
func judgeStudies(rows []Row) []Asked {
	var asked []Asked
	seen := map[string]bool{}
	for _, row := range rows {
		if key := row.Workload + row.Link; !seen[key] {
			seen[key] = true
			asked = append(asked, medians(rows).judgeTrial(row.Workload, row.Link)...)
		}
	}
	return slices.DeleteFunc(asked, func(a Asked) bool { return math.IsNaN(a.Value) || math.IsNaN(a.Limit) })
}

func (m medians) judgeTrial(workload, link string) []Asked {
	title := workload + ", " + link + ": "
	live := []string{wayPreCopy, wayPostCopy, wayHybrid, wayStagedPreCopy, wayStagedHybrid}
	down := m.best(workload, link, metricDowntime, live...)
	total := func(ways ...string) float64 { return m.best(workload, link, metricTotal, ways...) }
	bytes := func(what string, value, limit float64) Asked {
		a := atMost(what, value, limit)
		a.Unit = "bytes"
		return a
	}
	switch study, name, _ := strings.Cut(strings.TrimPrefix(workload, "study "), ": "); study + " " + name {
	case "a " + busyboxApp().name:
		return []Asked{
			atMost(title+"handoff", m.best(workload, link, metricHandoff, append(live, wayCold)...), askedBusyboxHandoff),
			atMost(title+"downtime", m.best(workload, link, metricDowntime, append(live, wayCold)...), askedBusyboxDowntime),
		}
	case "a " + recogniserApp().name:
		return []Asked{
			atMost(title+"downtime", down, askedFaceDowntime),
			bytes(title+"sent in the handoff, at most the study's", m.best(workload, link, metricSent, wayStagedHybrid, wayStagedPreCopy),
				m.of(workload, link, wayStudy, metricSent)),
		}
	case "c " + blankApp().name, "c " + videoApp().name:
		return []Asked{
			atMost(title+"downtime", down, askedFollowDowntime), atMost(title+"total time, staged", total(wayStagedPreCopy, wayStagedHybrid), askedStagedTotal),
			atMost(title+"the picture stands still", m.best(workload, link, metricStill, live...), 0),
		}
	case "c " + blankApp().name + ", image not there":
		return []Asked{atMost(title+"downtime", down, askedFollowDowntime), atMost(title+"total time", total(wayPreCopy), askedBlankTotal)}
	case "c " + videoApp().name + ", image not there":
		return []Asked{
			atMost(title+"downtime", down, askedFollowDowntime), atMost(title+"total time", total(wayPreCopy), askedVideoTotal),
			atMost(title+"the picture stands still", m.best(workload, link, metricStill, live...), 0),
		}
	case "d rabbitmq":
		return []Asked{atMost(title+"downtime, 20 times lower than with no checkpoint", down, m.of(workload, link, wayStopRsync, metricDowntime)/askedTimes)}
	}
	if !strings.HasPrefix(workload, "study b") {
		return nil
	}
	return []Asked{
		atMost(title+"downtime, 20 times lower than cold's", down, m.of(workload, link, wayRsync, metricDowntime)/askedTimes),
		atMost(title+"total time, at most 1.1 of cold's", total(live...), askedTotalFactor*m.of(workload, link, wayRsync, metricTotal)),
		bytes(title+"bytes, at most cold's", m.best(workload, link, metricSent, live...), m.of(workload, link, wayRsync, metricSent)),
	}
}
