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

// unpackBuffer is the size of the pieces in which an archive goes through digest, check and unpacking.
const unpackBuffer = 256 << 10

// maxWindow bounds the memory that a hostile zstd archive can demand. The format's reference
// program asks for the same or less below its --ultra levels.
const maxWindow = 128 << 20

// unpack reads a layer's archive once, to its end: it checks the headers, makes the tree, keeps the
// archive, and compares the digest. It returns the size of the files and of the plain archive,
// which may have at most so many bytes (0: any number). Whatever it has written when it fails is
// for the caller to remove; none of it is outside of the tree.
//
// go-archive does all its work below an os.Root, so that names and links in the archive cannot lead
// out, and needs no chroot and no further process for that.
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
		// what is behind the archive's end counts for the digest
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

// counter counts what is written to it, and ends what is longer than it may be.
type counter struct{ bytes, most int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.bytes += int64(len(p))
	if c.most > 0 && c.bytes > c.most {
		return 0, fmt.Errorf("%w: it has more than the %d bytes that were announced", ErrInvalid, c.most)
	}
	return len(p), nil
}

// bounded ends an archive, compressed or not, that is longer than one of so many bytes can become
// by any compression (0: any number). What a compressed one has beside its content may be kept,
// too, and need not end.
func bounded(from io.Reader, most int64) io.Reader {
	if most <= 0 {
		return from
	}
	return io.TeeReader(from, &counter{most: most + most/8 + 1<<20})
}

// A compressed archive may become so much larger, and in any case so large. Programs and texts
// become ten times as large; what becomes more than this is made to keep its readers busy, or to
// fill their disks.
const (
	mostExpansion = 200
	alwaysAllowed = 1 << 30
)

// MostOf is how large an archive of so many bytes may be when it is not compressed any more.
func MostOf(compressed int64) int64 { return max(alwaysAllowed, compressed*mostExpansion) }

// truncated says what an early end means.
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

// compressed tells whether a file begins as a compressed one.
func compressed(file io.ReaderAt) bool {
	magic := make([]byte, len(zstdMagic))
	n, _ := file.ReadAt(magic, 0)
	return Compression(magic[:n]) != ""
}

// Compression is what the beginning of an archive, its first four bytes, says that it is compressed
// by: gzip, zstd, or nothing.
func Compression(begin []byte) string {
	switch {
	case bytes.HasPrefix(begin, gzipMagic):
		return "gzip"
	case bytes.HasPrefix(begin, zstdMagic):
		return "zstd"
	}
	return ""
}

// plainArchive decompresses whatever the beginning of a stream says that it is.
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

// decompress makes a plain archive from a compressed one, whatever it says that it is, and keeps
// it, compressed by zstd. An archive that is so compressed already is kept as it is. Call finish
// when all has been read.
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

// onlyReader hides other methods, so that a copy uses the buffer that it is given and sees its context.
type onlyReader struct{ io.Reader }
