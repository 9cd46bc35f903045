package pager

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// latencies counts durations in buckets whose width is a sixteenth of a power of two. It needs no memory
// for each duration, and is exact to 7 %.
type latencies struct {
	buckets [64 * perOctave]atomic.Int64
	maximum atomic.Int64
}

const perOctave = 16

func bucketOf(d time.Duration) int {
	n := uint64(max(d, 1))
	octave := bits.Len64(n) - 1
	if octave < 4 {
		return int(n) - 1 // exact below 16 ns
	}
	return octave*perOctave + int(n>>(octave-4)&(perOctave-1))
}

// valueOf returns the upper end of a bucket.
func valueOf(bucket int) time.Duration {
	octave, part := bucket/perOctave, bucket%perOctave
	if octave < 4 {
		return time.Duration(bucket + 1)
	}
	return time.Duration(uint64(perOctave+part+1)<<(octave-4)) - 1
}

func (l *latencies) add(d time.Duration) {
	l.buckets[bucketOf(d)].Add(1)
	for {
		before := l.maximum.Load()
		if int64(d) <= before || l.maximum.CompareAndSwap(before, int64(d)) {
			return
		}
	}
}

// count returns the number of durations.
func (l *latencies) count() int64 {
	total := int64(0)
	for i := range l.buckets {
		total += l.buckets[i].Load()
	}
	return total
}

// summary returns the median, the 99th percentile, and the maximum, in seconds.
func (l *latencies) summary() (median, p99, maximum float64) {
	return l.quantile(0.5).Seconds(), l.quantile(0.99).Seconds(), time.Duration(l.maximum.Load()).Seconds()
}

// quantile returns the duration that this share did not exceed; 0 if there were none.
func (l *latencies) quantile(share float64) time.Duration {
	total := l.count()
	if total == 0 {
		return 0
	}
	rank, seen := int64(share*float64(total-1)), int64(0)
	for i := range l.buckets {
		if seen += l.buckets[i].Load(); seen > rank {
			return min(valueOf(i), time.Duration(l.maximum.Load()))
		}
	}
	return time.Duration(l.maximum.Load())
}
