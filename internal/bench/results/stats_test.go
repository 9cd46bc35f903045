package results

import (
	"math"
	"reflect"
	"testing"
)

func TestSummarise(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		want    Summary
	}{
		{[]float64{3}, Summary{3, 3, 3}},
		{[]float64{4, 1}, Summary{2.5, 1, 4}},
		{[]float64{9, 1, 5}, Summary{5, 1, 9}},
		{[]float64{7, 1, 3, 100}, Summary{5, 1, 100}},
	} {
		samples := append([]float64{}, c.samples...)
		if got := Summarise(samples); got != c.want {
			t.Errorf("summarise(%v) = %v, want %v", c.samples, got, c.want)
		}
		if !reflect.DeepEqual(samples, c.samples) {
			t.Errorf("summarise changed the order of the samples: %v, want %v", samples, c.samples)
		}
	}
}

// TestInterval compares with tables of the intervals of order statistics: of 6 samples all, of 9 the 2nd to
// the 8th, of 20 the 6th to the 15th.
func TestInterval(t *testing.T) {
	for _, want := range []struct {
		samples, low, high int
		certainty          float64
	}{{1, 1, 1, 0}, {2, 1, 2, 0.5}, {5, 1, 5, 0.9375}, {6, 1, 6, 0.96875}, {9, 2, 8, 0.9609},
		{20, 6, 15, 0.9586}} {
		var samples []float64
		for i := range want.samples {
			samples = append(samples, float64(want.samples-i))
		}
		low, high, certainty := Interval(samples)
		if low != float64(want.low) || high != float64(want.high) ||
			math.Abs(certainty-want.certainty) > 1e-4 {
			t.Errorf("%d samples: from %v to %v with %v, want %+v", want.samples, low, high, certainty, want)
		}
	}
}
