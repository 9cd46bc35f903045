package memory

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"
)

// Contents describes a sample of pages.
type Contents struct {
	Pages      int     // examined
	Zero       float64 // share of zero pages
	Duplicates float64 // share of nonzero pages with the content of another one
	Ratio      float64 // size of the rest with zstd's fastest level; 1: incompressible
	// CompressBytesPerSecond is the speed of that, on one core.
	CompressBytesPerSecond float64
}

const (
	// sampledRuns of sampledPages are examined: 2 MiB. Neighbouring pages are compressed together, as when
	// they are sent.
	sampledRuns  = 64
	sampledPages = 8
)

// Contents examines some pages. It takes 10 ms.
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

// compress measures compression, each piece by itself.
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
