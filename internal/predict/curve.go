package predict

import (
	"math"
	"slices"
)

// Point is the number of bytes of distinct pages that were written within a time.
type Point struct {
	Seconds float64 `json:"seconds"`
	Bytes   float64 `json:"bytes"`
}

// Curve is the dirtying curve: Points by ascending time. An empty curve means that the container writes
// nothing.
type Curve []Point

// Windows are the times within which distinct written pages are counted, in seconds.
func Windows() []float64 { return []float64{0.1, 1, 10, 60} }

// sane returns the curve without impossible points.
func (c Curve) sane() Curve {
	return slices.DeleteFunc(slices.Clone(c), func(p Point) bool {
		return !(p.Seconds > 0 && p.Seconds <= mostSeconds) || !(p.Bytes >= 0 && p.Bytes <= mostBytes)
	})
}

// Within returns how many bytes of pages are written within so many seconds, and at most most. Between
// points, and beyond them, the curve is a power of time with an exponent from 0 to 1: a longer time does
// not have fewer written pages, and a time that is n times as long has at most n times as many.
func (c Curve) Within(seconds, most float64) float64 {
	c = slices.DeleteFunc(slices.Clone(c), func(p Point) bool {
		return !(p.Seconds > 0) || !(p.Bytes >= 0) || math.IsInf(p.Bytes, 0) || math.IsInf(p.Seconds, 0)
	})
	if len(c) == 0 || seconds <= 0 {
		return 0
	}
	if len(c) == 1 {
		return min(c[0].Bytes*seconds/c[0].Seconds, most)
	}
	i := 1
	for i < len(c)-1 && seconds > c[i].Seconds {
		i++
	}
	return min(between(c[i-1], c[i], seconds), most)
}

// between is the power of time that goes through two points. After the second point it is not known whether
// the program goes on to write new pages, as the power says, or writes at random to a fixed number of
// pages, of which the second point shows a part: then the curve is W(1-exp(-kt)). between takes the middle
// of the two.
func between(a, b Point, seconds float64) float64 {
	if b.Bytes <= 0 {
		return 0
	}
	if a.Bytes <= 0 {
		return b.Bytes * min(1, math.Max(0, (seconds-a.Seconds)/(b.Seconds-a.Seconds)))
	}
	exponent := math.Log(b.Bytes/a.Bytes) / math.Log(b.Seconds/a.Seconds)
	exponent = min(1, max(0, exponent))
	from := b
	if seconds < a.Seconds || seconds-a.Seconds < b.Seconds-seconds {
		from = a
	}
	power := from.Bytes * math.Pow(seconds/from.Seconds, exponent)
	if seconds <= b.Seconds {
		return power
	}
	return math.Sqrt(power * saturating(a, b, seconds))
}

// saturating is W(1-exp(-kt)) through two points, the second of which is later and has no less, at a later
// time.
func saturating(a, b Point, seconds float64) float64 {
	share := func(k, t float64) float64 { return -math.Expm1(-k * t) }
	low, high := 1e-6/b.Seconds, 100/a.Seconds // of k
	if a.Bytes/b.Bytes <= share(low, a.Seconds)/share(low, b.Seconds) {
		return b.Bytes * seconds / b.Seconds // the curve has not begun to saturate
	}
	for range 50 {
		k := math.Sqrt(low * high)
		if share(k, a.Seconds)/share(k, b.Seconds) < a.Bytes/b.Bytes {
			low = k
		} else {
			high = k
		}
	}
	return b.Bytes * share(low, seconds) / share(low, b.Seconds)
}

// With returns the curve with another measurement's points of longer times than its own.
func (c Curve) With(longer Curve) Curve {
	c = slices.Clone(c)
	for _, p := range longer {
		if n := len(c); n > 0 && p.Seconds > c[n-1].Seconds*leastLonger {
			c = append(c, Point{p.Seconds, max(p.Bytes, c[n-1].Bytes)})
		}
	}
	return c
}

// leastLonger is the factor by which a point has to be later to add information.
const leastLonger = 1.5

// Longest returns the longest time that was watched.
func (c Curve) Longest() float64 {
	if len(c) == 0 {
		return 0
	}
	return c[len(c)-1].Seconds
}
