package sampling

import (
	"testing"

	"github.com/godwit/godwit/internal/predict"
)

// TestCurveDoesNotFall: the curve does not fall, neither because pages have gone, nor because a machine was
// too busy to look in time.
func TestCurveDoesNotFall(t *testing.T) {
	var curve predict.Curve
	for _, seen := range []struct{ window, elapsed, bytes, want float64 }{
		{0.1, 0.1, 100, 100}, {1, 2, 150, 100}, {10, 20, 400, 200}, {60, 60, 50, 200},
	} {
		curve = appendPoint(curve, seen.window, seen.elapsed, seen.bytes)
		if last := curve[len(curve)-1]; last.Bytes != seen.want || last.Seconds != seen.window {
			t.Errorf("%+v: %+v", seen, last)
		}
	}
}
