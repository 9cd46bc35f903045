package image

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/moby/go-archive"
)

// unpackBuffer is the size of the pieces in which an archive is digested, checked and unpacked.
const unpackBuffer = 256 << 10

// maxWindow bounds the memory that a hostile zstd archive can demand. The format's reference
// program asks for the same or less below its --ultra levels.
const maxWindow = 128 << 20

// unpack reads a layer's archive once, to its end: it checks the headers, makes the tree, keeps the
// archive, and compares the digest. It returns the size of the files and of the uncompressed archive, which
// may have at most this many bytes (0: any number). After a failure the caller removes what was written,
// all of which is within the tree.
//
// go-archive works below an os.Root, so names and links in the archive cannot lead out, and it needs no
// chroot and no other process for that.
func unpack(raw io.Reader, diffID, tree string, keep *os.File, most int64) (size, length int64, err error) {
	plain, finish, err := decompress(raw, keep)
	if err != nil {
		return 0, 0, err
	}
	digest := sha256.New()
	count := &counter{most: most}
	ahead := readAhead(io.TeeReader(plain, io.MultiWriter(count, digest)))
	check := startCheck()
	stream := bufio.NewReaderSize(io.TeeReader(ahead, check), unpackBuffer)
	err = archive.Unpack(stream, tree, &archive.TarOptions{WhiteoutFormat: archive.OverlayWhiteoutFormat})
	if err == nil {
		// data after the archive's end counts for the digest
		_, err = io.Copy(io.Discard, onlyReader{stream})
	}
	size, refused := check.result(err)
	ahead.Close()
	if refused != nil {
		err = refused
	}
	if err = errors.Join(err, finish()); err != nil {
		return 0, 0, fmt.Errorf("unpack its archive: %w", truncated(err))
	}
	if got := "sha256:" + hex.EncodeToString(digest.Sum(nil)); got != diffID {
		return 0, 0, fmt.Errorf("%w: the content of its archive has digest %s: it is another one or damaged",
			ErrInvalid, got)
	}
	return size, count.bytes, nil
}

// counter counts written bytes, and fails when there are too many.
type counter struct{ bytes, most int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.bytes += int64(len(p))
	if c.most > 0 && c.bytes > c.most {
		return 0, fmt.Errorf("%w: it has more than the %d bytes that were announced", ErrInvalid, c.most)
	}
	return len(p), nil
}

// bounded ends an archive, compressed or not, that is longer than any compression of this many bytes can be
// (0: any number). A compressed archive may have data beside its content that is kept, too, and need not
// end.
func bounded(from io.Reader, most int64) io.Reader {
	if most <= 0 {
		return from
	}
	return io.TeeReader(from, &counter{most: most + most/8 + 1<<20})
}

// The permitted expansion of a compressed archive, and the size that is always permitted. Programs and
// texts become ten times as large; more than this is meant to keep readers busy, or to fill their disks.
const (
	mostExpansion = 200
	alwaysAllowed = 1 << 30
)

// MostOf returns the maximum uncompressed size of an archive with this many bytes.
func MostOf(compressed int64) int64 { return max(alwaysAllowed, compressed*mostExpansion) }

// truncated explains an early end.
func truncated(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it is truncated, or lies about its sizes: %w", ErrInvalid, err)
	}
	return err
}

var (
	gzipMagic = []byte{0x1f, 0x8b}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
)

// compressed reports whether the beginning of a file is that of a compressed one.
func compressed(file io.ReaderAt) bool {
	magic := make([]byte, len(zstdMagic))
	n, _ := file.ReadAt(magic, 0)
	return Compression(magic[:n]) != ""
}

// Compression returns the compression of an archive according to its first four bytes: gzip, zstd, or none.
func Compression(begin []byte) string {
	switch {
	case bytes.HasPrefix(begin, gzipMagic):
		return "gzip"
	case bytes.HasPrefix(begin, zstdMagic):
		return "zstd"
	}
	return ""
}

// plainArchive decompresses a stream according to its beginning.
func plainArchive(raw io.Reader) (io.Reader, error) {
	in := bufio.NewReaderSize(raw, unpackBuffer)
	magic, err := in.Peek(len(zstdMagic))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch Compression(magic) {
	case "gzip":
		return gzip.NewReader(in)
	case "zstd":
		// One goroutine's worth of decoder ends with its input and needs no closing.
		return zstd.NewReader(in, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderLowmem(true))
	}
	return in, nil
}

// decompress returns the plain archive of a compressed one, detected by its beginning, and keeps it
// compressed by zstd. An archive that is already compressed by zstd is kept as it is. Call finish when
// everything has been read.
func decompress(raw io.Reader, keep *os.File) (plain io.Reader, finish func() error, err error) {
	in := bufio.NewReaderSize(raw, unpackBuffer)
	if magic, _ := in.Peek(len(zstdMagic)); bytes.Equal(magic, zstdMagic) {
		// The decoder itself reads to the end of its input, so all of it is kept.
		plain, err = plainArchive(io.TeeReader(in, keep))
		return plain, func() error { return nil }, err
	}
	if plain, err = plainArchive(in); err != nil {
		return nil, nil, err
	}
	encoder, err := zstd.NewWriter(keep, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return nil, nil, err
	}
	return io.TeeReader(plain, encoder), encoder.Close, nil
}

// checked reads a blob so that its end comes only if size and digest are right.
func (b blob) checked(raw io.Reader) io.Reader {
	if b.digest == "" {
		return raw
	}
	return &verifier{in: io.LimitReader(raw, b.size+1), digest: sha256.New(), want: b}
}

type verifier struct {
	in     io.Reader
	digest hash.Hash
	size   int64
	want   blob
}

func (v *verifier) Read(p []byte) (int, error) {
	n, err := v.in.Read(p)
	v.digest.Write(p[:n])
	v.size += int64(n)
	switch {
	case v.size > v.want.size:
		return 0, fmt.Errorf("%w: a blob is longer than the %d bytes that were announced", ErrInvalid,
			v.want.size)
	case !errors.Is(err, io.EOF):
		return n, err
	case v.size < v.want.size:
		return n, fmt.Errorf("%w: a blob has %d bytes, %d were announced", ErrInvalid, v.size, v.want.size)
	}
	if got := "sha256:" + hex.EncodeToString(v.digest.Sum(nil)); got != v.want.digest {
		return n, fmt.Errorf("%w: a blob has digest %s instead of %s", ErrInvalid, got, v.want.digest)
	}
	return n, err
}

// contextReader ends when its context does.
type contextReader struct {
	ctx context.Context
	in  io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.in.Read(p)
}

// onlyReader hides other methods, so that a copy uses the given buffer and sees its context.
type onlyReader struct{ io.Reader }
