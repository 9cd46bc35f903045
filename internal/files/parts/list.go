package parts

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/godwit/godwit/internal/files/chunk"
)

// Part is a piece of an archive.
type Part struct {
	Digest chunk.Digest
	Length uint32
}

// ErrInvalid says that a list makes no sense.
var ErrInvalid = errors.New("invalid list of parts")

const (
	// MaxParts is how many an archive can have: see chunk.MaxChunks.
	MaxParts = 4*chunk.MaxChunks + 1
	// MaxPart bounds the memory that a part takes. Archives of which parts would be larger are not cut.
	MaxPart = 16 << 20
	// encodedPart is the length and the digest.
	encodedPart = 4 + len(chunk.Digest{})
	// atOnce is how many parts are told of at a time.
	atOnce = 512
)

// CanCut reports whether an archive of this size can be cut.
func CanCut(size int64) bool { return size > 0 && chunk.SizesFor(size).Most <= MaxPart }

// newHasher makes what hashes parts. All nodes use one key, which is no secret. Whoever makes two
// parts with the same digest gains nothing: what is put together of the wrong ones is no layer, by
// the layer's own digest.
func newHasher() (*chunk.Hasher, error) { return chunk.NewHasher(chunk.Key{}) }

// Cut reads an archive of this size and tells of its parts, some at a time.
func Cut(archive io.Reader, size int64, emit func([]Part) error) error {
	cutter := chunk.NewCutter(chunk.SizesFor(size))
	buffer := make([]byte, chunk.SizesFor(0).Most)
	hasher, err := newHasher()
	if err != nil {
		return err
	}
	part, found := Part{}, make([]Part, 0, atOnce)
	end := func() {
		part.Digest = hasher.Sum()
		found = append(found, part)
		part = Part{}
	}
	for {
		n, err := archive.Read(buffer)
		for piece := buffer[:n]; len(piece) > 0; {
			taken, ended := cutter.Next(piece)
			hasher.Write(piece[:taken])
			part.Length += uint32(taken)
			piece = piece[taken:]
			if ended {
				end()
			}
		}
		last := errors.Is(err, io.EOF)
		if last && part.Length > 0 {
			end()
		}
		if len(found) >= atOnce || last {
			if told := emit(found); told != nil {
				return told
			}
			found = found[:0]
		}
		if last {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Append encodes parts.
func Append(b []byte, parts []Part) []byte {
	for _, p := range parts {
		b = binary.BigEndian.AppendUint32(b, p.Length)
		b = append(b, p.Digest[:]...)
	}
	return b
}

// Read decodes the parts of an archive of this size, to the end of what comes.
func Read(in io.Reader, size int64) ([]Part, error) {
	reader := bufio.NewReader(in)
	var parts []Part
	var entry [encodedPart]byte
	for left := size; ; {
		_, err := io.ReadFull(reader, entry[:])
		if errors.Is(err, io.EOF) && left == 0 {
			return parts, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%w: after %d parts %d bytes are missing: %w", ErrInvalid, len(parts),
				left, err)
		}
		part := Part{Length: binary.BigEndian.Uint32(entry[:])}
		copy(part.Digest[:], entry[4:])
		left -= int64(part.Length)
		if part.Length == 0 || part.Length > MaxPart || left < 0 || len(parts) == MaxParts {
			return nil, fmt.Errorf("%w: part %d with %d bytes, of an archive of %d", ErrInvalid, len(parts),
				part.Length, size)
		}
		parts = append(parts, part)
	}
}

// Run is some parts in a row.
type Run struct{ First, Count uint32 }

const encodedRun = 8

// MaxRuns is how many bytes a list of runs takes at most.
const MaxRuns = (MaxParts/2 + 1) * encodedRun

// AppendRuns encodes runs.
func AppendRuns(b []byte, runs []Run) []byte {
	for _, r := range runs {
		b = binary.BigEndian.AppendUint32(b, r.First)
		b = binary.BigEndian.AppendUint32(b, r.Count)
	}
	return b
}

// DecodeRuns decodes runs of an archive with so many parts: they are in order, and do not overlap.
func DecodeRuns(b []byte, parts int) ([]Run, error) {
	if len(b)%encodedRun != 0 || len(b) > MaxRuns {
		return nil, fmt.Errorf("%w: runs in %d bytes", ErrInvalid, len(b))
	}
	runs := make([]Run, 0, len(b)/encodedRun)
	next := uint64(0)
	for ; len(b) > 0; b = b[encodedRun:] {
		run := Run{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])}
		if run.Count == 0 || uint64(run.First) < next || uint64(run.First)+uint64(run.Count) > uint64(parts) {
			return nil, fmt.Errorf("%w: %d parts from %d on, of %d, and the next is %d", ErrInvalid,
				run.Count, run.First, parts, next)
		}
		next = uint64(run.First) + uint64(run.Count)
		runs = append(runs, run)
	}
	return runs, nil
}

// Pick writes some parts of an archive, which is read as far as they are.
func Pick(archive io.Reader, parts []Part, runs []Run, w io.Writer) error {
	buffer := make([]byte, 256<<10)
	next := uint32(0)
	for _, run := range runs {
		_, err := io.CopyBuffer(io.Discard, plain(archive, length(parts[next:run.First])), buffer)
		if err == nil {
			next = run.First + run.Count
			wanted := length(parts[run.First:next])
			var n int64
			if n, err = io.CopyBuffer(w, plain(archive, wanted), buffer); err == nil && n < wanted {
				err = io.ErrUnexpectedEOF
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// plain is a reader of some bytes, and nothing else: so a copy uses its buffer.
func plain(r io.Reader, bytes int64) io.Reader { return struct{ io.Reader }{io.LimitReader(r, bytes)} }

func length(parts []Part) (bytes int64) {
	for _, p := range parts {
		bytes += int64(p.Length)
	}
	return bytes
}
