package rounds

import (
	"math"

	"github.com/godwit/godwit/internal/bench/results"
)

// demand is a requirement for one metric of an experiment: that its median is at most, or at least, a
// value.
type demand struct {
	what   string
	metric string
	most   float64
	least  float64
}

func (e experiment) judge(rows []results.Row) []results.Asked {
	asked := []results.Asked{}
	for _, d := range e.asked {
		value := results.Medians(rows).Of(e.name, "", e.way, d.metric)
		if math.IsNaN(value) {
			continue
		}
		a := results.Asked{What: d.what, Unit: results.Unit(d.metric), Limit: d.most, Value: value,
			Met: value <= d.most}
		if d.least > 0 {
			a.Least, a.Limit, a.Met = true, d.least, value >= d.least
		}
		asked = append(asked, a)
	}
	return asked
}
