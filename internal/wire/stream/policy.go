package stream

import "fmt"

// Choice is a codec and the reason for it.
type Choice struct {
	Codec Codec
	// BytesPerSecond is the expected throughput of raw content.
	BytesPerSecond float64
	Why            string
}

// speed is how fast a codec is on one core, and its compressed share. The speeds were measured with
// half-compressible memory on one core of an AMD EPYC; they only have to be right relative to each other.
type speed struct {
	codec          Codec
	bytesPerSecond float64 // 0: costs nothing
	ratio          float64
}

func speeds() []speed {
	return []speed{
		{None, 0, 1},
		{S2, 1.9e9, 0.60},
		{ZstdFastest, 0.5e9, 0.52},
		{ZstdDefault, 0.22e9, 0.50},
		{ZstdBetter, 0.11e9, 0.485},
	}
}

// Choose returns the codec that brings most content through a link of this bandwidth, on a node with this
// many cores. It uses half of them, and at most 4: the dump, the encryption and the containers need the
// others. Compressing and sending overlap, so the slower of the two counts; of equal codecs, the cheaper
// wins. For an unknown bandwidth (0 or less) it returns S2, which is never far from the best.
func Choose(bandwidthBitsPerSecond float64, cores int) Choice {
	workers := float64(min(max(cores/2, 1), maxWorkers))
	if bandwidthBitsPerSecond <= 0 {
		return Choice{Codec: S2, Why: "the bandwidth is not known; s2 costs little and helps on most links"}
	}
	link := bandwidthBitsPerSecond / 8
	best := Choice{Codec: None, BytesPerSecond: link, Why: fmt.Sprintf(
		"at %.3g Mbit/s the link is faster than any codec on %.0f core(s)", bandwidthBitsPerSecond/1e6,
		workers)}
	for _, s := range speeds()[1:] {
		through := min(link/s.ratio, s.bytesPerSecond*workers)
		if through < best.BytesPerSecond*1.02 {
			continue
		}
		limit := "the link"
		if s.bytesPerSecond*workers < link/s.ratio {
			limit = "the processor"
		}
		best = Choice{Codec: s.codec, BytesPerSecond: through, Why: fmt.Sprintf(
			"at %.3g Mbit/s and %.0f core(s) %s brings about %.0f MB/s through; %s is the limit",
			bandwidthBitsPerSecond/1e6, workers, s.codec, through/1e6, limit)}
	}
	return best
}
