package stream

import (
	"fmt"
	"sync"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

// Codec is a way to compress a frame. The numbers are part of the protocol.
type Codec uint8

// The codecs, from the fastest to the one that compresses most.
const (
	None Codec = iota
	S2
	ZstdFastest
	ZstdDefault
	ZstdBetter
	codecsEnd
)

// String gives the codec's name, as in reports.
func (c Codec) String() string {
	names := [...]string{"none", "s2", "zstd-fastest", "zstd-default", "zstd-better"}
	if int(c) < len(names) {
		return names[c]
	}
	return fmt.Sprintf("codec %d", uint8(c))
}

// smallChunk is the chunk size of the fast codecs.
const smallChunk = 256 << 10

// chunkBytes returns how much is compressed at once. The slow codecs are for slow links, where a larger
// window pays.
func (c Codec) chunkBytes() int {
	if c >= ZstdDefault {
		return MaxFrame
	}
	return smallChunk
}

// compressor has the tables of a session's codecs, made when a codec is first chosen, which takes too long
// for a freeze. For each core they take 3, 4 and 7 MiB for the three levels of zstd.
type compressor struct {
	workers int
	mu      sync.Mutex
	levels  [codecsEnd]*zstd.Encoder
}

// cores returns how many cores compression gets: see Choose.
func (c *compressor) cores() int { return max(1, c.workers/2) }

// forget releases all tables. A codec must be prepared again before it is used.
func (c *compressor) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.levels[:])
}

// prepare makes a codec ready.
func (c *compressor) prepare(codec Codec) error {
	if codec < ZstdFastest {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.levels[codec] != nil {
		return nil
	}
	level := map[Codec]zstd.EncoderLevel{
		ZstdFastest: zstd.SpeedFastest, ZstdDefault: zstd.SpeedDefault,
		ZstdBetter: zstd.SpeedBetterCompression,
	}[codec]
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(level), zstd.WithEncoderConcurrency(c.cores()),
		zstd.WithWindowSize(MaxFrame), zstd.WithEncoderCRC(false), zstd.WithSingleSegment(true))
	if err != nil {
		return fmt.Errorf("prepare codec %s: %w", codec, err)
	}
	encoder.EncodeAll(make([]byte, minChunk), nil) // the tables are made at the first use
	c.levels[codec] = encoder
	return nil
}

// compress appends the compressed form of raw to dst; it returns false if that is not worthwhile.
func (c *compressor) compress(codec Codec, dst, raw []byte) ([]byte, bool) {
	start := len(dst)
	switch {
	case codec == None || len(raw) < minCompress:
		return dst, false
	case codec == S2:
		need := start + s2.MaxEncodedLen(len(raw))
		if cap(dst) < need {
			dst = append(make([]byte, 0, need), dst...)
		}
		dst = dst[:start+len(s2.Encode(dst[start:need], raw))]
	case incompressible(raw):
		return dst, false // zstd would spend much time for nothing
	default:
		c.mu.Lock()
		encoder := c.levels[codec]
		c.mu.Unlock()
		if encoder == nil { // forgotten meanwhile
			return dst, false
		}
		dst = encoder.EncodeAll(raw, dst)
	}
	return dst, worthwhile(len(dst)-start, len(raw))
}

// incompressible reports whether content is random, or already compressed.
func incompressible(raw []byte) bool { return !worthwhile(s2.EstimateBlockSize(raw), len(raw)) }

// worthwhile reports whether a frame saves enough to be worth decompressing. A negative size means that it
// cannot be compressed at all.
func worthwhile(size, raw int) bool { return size >= 0 && size < raw-raw/16 }

// newDecompressor makes a decoder that never returns more than a frame.
func newDecompressor(workers int) (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(workers), zstd.WithDecoderMaxMemory(MaxFrame),
		zstd.WithDecoderMaxWindow(MaxFrame), zstd.WithDecodeAllCapLimit(true))
}

// decompress fills raw, whose length is what the frame announced, and fails if it would be longer or shorter.
func decompress(zstds *zstd.Decoder, codec Codec, raw, wire []byte) error {
	var length int
	switch codec {
	case None:
		length = copy(raw, wire)
	case S2:
		announced, err := s2.DecodedLen(wire)
		if err != nil || announced != len(raw) {
			return protocolError("a frame of %d bytes says inside that it has %d", len(raw), announced)
		}
		if _, err := s2.Decode(raw, wire); err != nil {
			return protocolError("a frame cannot be decompressed: %v", err)
		}
		return nil
	default:
		out, err := zstds.DecodeAll(wire, raw[:0:len(raw)])
		if err != nil {
			return protocolError("a frame cannot be decompressed: %v", err)
		}
		length = len(out)
	}
	if length != len(raw) {
		return protocolError("a frame that announced %d bytes has %d", len(raw), length)
	}
	return nil
}
