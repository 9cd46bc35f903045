package studies

import (
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/services"
	"github.com/godwit/godwit/internal/bench/testbed"
)

// published is a figure of a study.
type published struct {
	study, app, link, way string
	measured              []results.Measurement
}

const (
	wayStudy = "published"
	mega     = 1e6
)

// publishedFigures are those of Ma et al. (IEEE TMC 2019, A), Addad et al. (C) and Souza Junior et al.
// (CloudCom 2020, D). Puliafito et al. (Sensors 2019, B) has its figures only in charts. D's figures do not
// state the bandwidth: with 400 MB in 40 s it was about 100 Mbit/s.
func publishedFigures() []published {
	handoff := func(seconds, down, before, sent float64) []results.Measurement {
		return []results.Measurement{{results.Downtime, down}, {results.Handoff, seconds},
			{metricStageBytes, before * mega}, {results.Sent, sent * mega}}
	}
	follow := func(downMilliseconds, total float64) []results.Measurement {
		return []results.Measurement{{results.Downtime, downMilliseconds / 1e3}, {results.Total, total}}
	}
	face, video, blank, rabbit := services.Recogniser().Name, services.Video().Name, services.Blank().Name,
		"rabbitmq"
	all := []published{
		{"a", face, linkStudyA5, wayStudy, handoff(48.9, 48.1, 115.2, 22.6)},
		{"a", face, linkStudyA10, wayStudy, handoff(28.5, 27.9, 119.4, 22.2)},
		{"a", face, linkStudyA20, wayStudy, handoff(17.8, 17.3, 116.0, 21.2)},
		{"a", face, linkStudyA50, wayStudy, handoff(13.4, 12.8, 115.2, 23.2)},
		{"a", face, linkStudyA100, wayStudy, handoff(10.7, 10.1, 117.2, 21.6)},
		{"a", face, linkStudyA500, wayStudy, handoff(10.9, 10.3, 117.4, 23.0)},
		{"c", blank, testbed.LinkFast, wayStudy + ", tmpfs", follow(1043, 16.4)},
		{"c", blank, testbed.LinkFast, wayStudy + ", disk-less", follow(1152, 16.0)},
		{"c", blank, testbed.LinkFast, wayStudy + ", shared", follow(1825, 2.83)},
		{"c", video, testbed.LinkFast, wayStudy + ", tmpfs", follow(1282, 28.8)},
		{"c", video, testbed.LinkFast, wayStudy + ", disk-less", follow(1465, 27.8)},
		{"c", video, testbed.LinkFast, wayStudy + ", shared", follow(2454, 3.68)},
		{"d", rabbit, linkStudyD100, wayStudy + ", no checkpoint",
			[]results.Measurement{{results.Downtime, 40}}},
		{"d", rabbit, linkStudyD100, wayStudy + ", 1 checkpoint",
			[]results.Measurement{{results.Downtime, 10}}},
	}
	for _, link := range []string{linkStudyA5, linkStudyA10, linkStudyA20, linkStudyA50, linkStudyA100,
		linkStudyA500} {
		all = append(all,
			published{"a", services.Busybox().Name, link, wayStudy, handoff(3.1, 2.7, 0.01, 0.03)})
	}
	return all
}

// withPublished puts the studies' figures before the measurements of the same workload over the same link.
func withPublished(rows []results.Row) []results.Row {
	var all []results.Row
	var last results.Row
	for _, row := range rows {
		if row.Workload != last.Workload || row.Link != last.Link {
			all = append(all, publishedOf(row.Workload, row.Link)...)
		}
		all, last = append(all, row), row
	}
	return all
}

func publishedOf(workload, link string) []results.Row {
	var rows []results.Row
	for _, p := range publishedFigures() {
		t := trial{study: p.study, app: services.App{Name: p.app}}
		if t.title() != workload || p.link != link {
			continue
		}
		for _, m := range p.measured {
			value := m.Value
			rows = append(rows, results.Row{
				Workload: workload, Link: link, Way: p.way, Metric: m.Metric, Samples: []float64{},
				Median: &value, Low: &value, High: &value,
			})
		}
	}
	return rows
}
