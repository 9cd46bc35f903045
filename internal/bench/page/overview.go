package page

import (
	"slices"

	"github.com/godwit/godwit/internal/bench/results"
)

// overview compares how long each workload stood still over each link: as published, with today's tools,
// and with Godwit.
type overview struct {
	Labels []string `json:"labels"`
	Series []stack  `json:"series"` // bars are never 0
}

// The ways that represent all others, the best known first: the first measured one counts.
func representatives() []struct {
	label string
	ways  []string
} {
	return []struct {
		label string
		ways  []string
	}{
		{"published", []string{"published", "published, tmpfs", "published, no checkpoint"}},
		{"runc and rsync; for volumes stop, rsync, start", []string{"runc and rsync", "stop, rsync, start"}},
		{"Godwit, by itself", []string{"godwit auto", "godwit pre-copy", "godwit post-copy", "godwit cold"}},
		{"Godwit, staged before", []string{"godwit staged auto", "godwit staged hybrid",
			"godwit staged pre-copy"}},
	}
}

func newOverview(result results.Result) overview {
	o := overview{Labels: []string{}}
	for _, r := range representatives() {
		o.Series = append(o.Series, stack{Label: r.label, Data: []float64{}})
	}
	for _, s := range sections(result) {
		o.Labels = append(o.Labels, s.Title)
		for i, r := range representatives() {
			o.Series[i].Data = append(o.Series[i].Data, firstDowntime(result, s.of, r.ways))
		}
	}
	o.Series = slices.DeleteFunc(o.Series, func(s stack) bool { return slices.Max(append(s.Data, 0)) == 0 })
	return o
}

// firstDowntime returns the downtime of the first measured way, or 0.
func firstDowntime(result results.Result, s of, ways []string) float64 {
	for _, way := range ways {
		for _, row := range result.Rows {
			if row.Workload == s.workload && row.Link == s.link && row.Way == way &&
				row.Metric == "downtime_seconds" && row.Median != nil {
				return *row.Median
			}
		}
	}
	return 0
}
