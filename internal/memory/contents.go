package memory

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"
)

// Contents is what a sample of the pages holds.
type Contents struct {
	Pages      int     // that were looked at
	Zero       float64 // share of them
	Duplicates float64 // share of them that have the content of another of them, and are not zero
	Ratio      float64 // what zstd's fastest level leaves of the rest; 1: nothing can be saved
	// CompressBytesPerSecond is how fast that was, on one core.
	CompressBytesPerSecond float64
}

const (
	// sampledRuns of sampledPages are looked at: 2 MiB. Pages beside each other are compressed
	// together, as on their way.
	sampledRuns  = 64
	sampledPages = 8
)

// Contents looks at what some pages hold. It takes 10 ms.
func (w *Watcher) Contents() (Contents, error) {
	spots, _, err := w.choose(sampledRuns, sampledPages, true, func(*task) bool { return true })
	if err != nil {
		return Contents{}, err
	}
	var c Contents
	var rest [][]byte
	zero, seen, seed := make([]byte, PageSize()), map[uint64]bool{}, maphash.MakeSeed()
	zeros, duplicates := 0, 0
	for _, p := range spots {
		if !w.read(&p) {
			continue
		}
		var kept []byte
		for at := 0; at < len(p.content); at += PageSize() {
			page := p.content[at : at+PageSize()]
			c.Pages++
			digest := maphash.Bytes(seed, page)
			switch {
			case bytes.Equal(page, zero):
				zeros++
			case seen[digest]:
				duplicates++
			default:
				seen[digest] = true
				kept = append(kept, page...)
			}
		}
		rest = append(rest, kept)
	}
	if c.Pages == 0 {
		return c, nil
	}
	c.Zero, c.Duplicates = float64(zeros)/float64(c.Pages), float64(duplicates)/float64(c.Pages)
	return c, c.compress(rest)
}

// compress tells what is left of it, each piece compressed by itself.
func (c *Contents) compress(pieces [][]byte) error {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithEncoderConcurrency(1))
	if err != nil {
		return fmt.Errorf("sample the memory: %w", err)
	}
	defer encoder.Close()
	encoder.EncodeAll(make([]byte, PageSize()), nil) // the tables are made at the first use
	raw, left := 0, 0
	var buffer []byte
	var rates []float64
	for _, piece := range pieces {
		began := time.Now()
		buffer = encoder.EncodeAll(piece, buffer[:0])
		if took := time.Since(began).Seconds(); took > 0 && len(piece) > 0 {
			rates = append(rates, float64(len(piece))/took)
		}
		raw, left = raw+len(piece), left+min(len(buffer), len(piece))
	}
	if raw == 0 {
		return nil
	}
	c.Ratio = float64(left) / float64(raw)
	if slices.Sort(rates); len(rates) > 0 {
		c.CompressBytesPerSecond = rates[len(rates)/2] // on a busy machine some pieces were interrupted
	}
	return nil
}
