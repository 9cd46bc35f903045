package postcopy

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// A sealed file is a header and chunks, each encrypted and authenticated by AES-256-GCM. The nonce of a chunk
// is its number, and the header is authenticated with each chunk: so chunks cannot be moved, left out or
// taken from another file, and the header, which says how long the file is, cannot be changed. The key of a
// file is derived (HKDF-SHA256) from the secret, a random salt in the header, and what the file belongs to:
// no two files have the same key, so that no nonce is used twice.

const (
	sealedMagic  = "godwit spill 1\n\x00"
	saltBytes    = 32
	sealedHeader = len(sealedMagic) + saltBytes + 4 + 8 + 8
	// chunkBytes is a multiple of every page size. A requested page costs the decryption of a chunk.
	chunkBytes = 64 << 10
	tagBytes   = 16
)

// SpillKey is the secret of one spill.
type SpillKey [32]byte

// NewSpillKey makes a secret.
func NewSpillKey() (SpillKey, error) {
	var key SpillKey
	_, err := rand.Read(key[:])
	return key, err
}

// ErrSealed means that a file was not sealed with this key, or is damaged or incomplete.
var ErrSealed = errors.New("the file is damaged, not whole, or sealed with another key")

// sealedError returns ErrSealed for a file that is too short. An unreadable disk may be readable the next
// time.
func sealedError(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: %w", ErrSealed, err)
	}
	return err
}

// sealing is the header of a sealed file, with the key that belongs to it.
type sealing struct {
	header []byte
	pages  uint64 // so many, and…
	rest   uint64 // …so many bytes after them
	aead   cipher.AEAD
}

// newSealing makes the header of a new file.
func newSealing(key SpillKey, owner string, page int, pages, rest uint64) (*sealing, error) {
	header := make([]byte, sealedHeader)
	salt := header[copy(header, sealedMagic):]
	if _, err := rand.Read(salt[:saltBytes]); err != nil {
		return nil, err
	}
	numbers := salt[saltBytes:]
	binary.LittleEndian.PutUint32(numbers, uint32(page))
	binary.LittleEndian.PutUint64(numbers[4:], pages)
	binary.LittleEndian.PutUint64(numbers[12:], rest)
	return readSealing(header, key, owner, page)
}

// readSealing reads a header, which is trustworthy only once a chunk has been opened with it.
func readSealing(header []byte, key SpillKey, owner string, page int) (*sealing, error) {
	if len(header) != sealedHeader || string(header[:len(sealedMagic)]) != sealedMagic {
		return nil, fmt.Errorf("%w: it has no valid header", ErrSealed)
	}
	salt, numbers := header[len(sealedMagic):][:saltBytes], header[len(sealedMagic)+saltBytes:]
	pages, rest := binary.LittleEndian.Uint64(numbers[4:]), binary.LittleEndian.Uint64(numbers[12:])
	had := binary.LittleEndian.Uint32(numbers)
	if had != uint32(page) || pages > maxPages || rest > maxSpilledMap {
		return nil, fmt.Errorf("%w: %d pages of %d bytes, and %d more", ErrSealed, pages, had, rest)
	}
	derived, err := hkdf.Key(sha256.New, key[:], salt, "godwit spilled pages of "+owner, len(key))
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	return &sealing{header: header, pages: pages, rest: rest, aead: aead}, err
}

// nonce returns the nonce of a chunk.
func (s *sealing) nonce(chunk int64) []byte {
	return binary.LittleEndian.AppendUint64(make([]byte, 4, 12), uint64(chunk))
}

// sealedBytes returns the size of a file with this many bytes of content.
func sealedBytes(content int64) int64 {
	return int64(sealedHeader) + content + (content+chunkBytes-1)/chunkBytes*tagBytes
}

// sealer writes the chunks of a file, in order.
type sealer struct {
	*sealing
	out    io.Writer
	chunk  int64
	buffer []byte // content of the next chunk, and room for its tag
	sealed []byte
}

func newSealer(out io.Writer, s *sealing) *sealer {
	buffer, sealed := make([]byte, 0, chunkBytes), make([]byte, 0, chunkBytes+tagBytes)
	return &sealer{sealing: s, out: out, buffer: buffer, sealed: sealed}
}

// Write implements io.Writer. An incomplete chunk waits for more data, or for flush.
func (w *sealer) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := min(len(rest), chunkBytes-len(w.buffer))
		w.buffer, rest = append(w.buffer, rest[:n]...), rest[n:]
		if len(w.buffer) < chunkBytes {
			break
		}
		if err := w.flush(); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func (w *sealer) flush() error {
	if len(w.buffer) == 0 {
		return nil
	}
	w.sealed = w.aead.Seal(w.sealed[:0], w.nonce(w.chunk), w.buffer, w.header)
	w.chunk++
	w.buffer = w.buffer[:0]
	_, err := w.out.Write(w.sealed)
	return err
}

// opener reads the content of a file at any offset. It is safe for concurrent use.
type opener struct {
	*sealing
	in   io.ReaderAt
	size int64 // of the content
}

// ReadAt implements io.ReaderAt, but reads nothing beyond the end.
func (r *opener) ReadAt(p []byte, at int64) (int, error) {
	if at < 0 || int64(len(p)) > r.size-at {
		return 0, io.EOF
	}
	sealed := make([]byte, 0, chunkBytes+tagBytes)
	for done := 0; done < len(p); {
		chunk := (at + int64(done)) / chunkBytes
		content, err := r.open(chunk, sealed)
		if err != nil {
			return done, err
		}
		done += copy(p[done:], content[at+int64(done)-chunk*chunkBytes:])
	}
	return len(p), nil
}

// open decrypts a chunk in place.
func (r *opener) open(chunk int64, buffer []byte) ([]byte, error) {
	length := min(r.size-chunk*chunkBytes, chunkBytes) + tagBytes
	sealed := buffer[:length]
	if _, err := r.in.ReadAt(sealed, int64(sealedHeader)+chunk*(chunkBytes+tagBytes)); err != nil {
		return nil, fmt.Errorf("chunk %d: %w", chunk, sealedError(err))
	}
	content, err := r.aead.Open(sealed[:0], r.nonce(chunk), sealed, r.header)
	if err != nil {
		return nil, fmt.Errorf("%w: chunk %d", ErrSealed, chunk)
	}
	return content, nil
}
