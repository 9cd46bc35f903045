package predict

import (
	"math"
	"slices"
)

// Point says how many bytes of distinct pages were written within a time.
type Point struct {
	Seconds float64 `json:"seconds"`
	Bytes   float64 `json:"bytes"`
}

// Curve is the dirtying curve: Points by ascending time. An empty one is that of a container that writes nothing.
type Curve []Point

// Windows are those within which the distinct pages that are written are counted.
func Windows() []float64 { return []float64{0.1, 1, 10, 60} }

// Within is how many bytes of pages are written within so many seconds, and at most most. Between points, and beyond them, it
// is a power of time with an exponent from 0 to 1: in a longer time not fewer pages are written, and in one that is n
// times as long not more than n times as many.
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

// between is the power of time that goes through two points.
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
	if seconds > b.Seconds { // it does not go on to grow for ever as it did: a program has what it works on
		exponent *= beyond
	}
	return from.Bytes * math.Pow(seconds/from.Seconds, exponent)
}

// beyond is how much less the curve is expected to grow after the last point than before it.
const beyond = 0.9

// Longest is for how long was watched.
func (c Curve) Longest() float64 {
	if len(c) == 0 {
		return 0
	}
	return c[len(c)-1].Seconds
}
