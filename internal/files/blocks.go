package files

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
)

// The stream is cut into blocks, so that a reader takes large pieces and never a byte more than
// belongs to it, however what comes behind it on the same connection is read:
//
//	"GDWT" version(2)  { length(4, little endian, 1..maxBlock) payload }*  length=0 digest(32)
//
// The digest is SHA-256 of everything before it. Records may cross from one block to the next.
const (
	streamMagic   = "GDWT"
	streamVersion = 2
	maxBlock      = 1 << 20
	blockHeader   = 4

	// firstBlock is the size of the buffer until it has been full once: a small tree is sent in the
	// time that it takes to get a megabyte of memory from the kernel.
	firstBlock = 64 << 10

	// largeBlock is where handing the hashing to another goroutine costs less than it saves: about
	// 60 microseconds of SHA-256.
	largeBlock = 128 << 10
)

// Errors of a stream that is not whole. They are wrapped with what was found.
var (
	ErrCorrupt = errors.New("the file stream is damaged")
	ErrVersion = errors.New("the file stream has a version that this program does not know; run the same " +
		"version of godwit on both nodes")
)

// blockWriter collects records into blocks. After an error every call returns it.
type blockWriter struct {
	out     io.Writer
	digest  hash.Hash
	block   []byte // header and payload
	written int64
	onBlock func(total int64)
}

func newBlockWriter(out io.Writer, onBlock func(int64)) (*blockWriter, error) {
	w := &blockWriter{out: out, digest: sha256.New(), block: make([]byte, blockHeader, firstBlock),
		onBlock: onBlock}
	return w, w.emit(append([]byte(streamMagic), streamVersion))
}

// emit sends bytes and hashes them, at the same time if there are many.
func (w *blockWriter) emit(piece []byte) error {
	if len(piece) >= largeBlock {
		done := make(chan struct{})
		go func() {
			w.digest.Write(piece)
			close(done)
		}()
		defer func() { <-done }()
	} else {
		w.digest.Write(piece)
	}
	n, err := w.out.Write(piece)
	w.written += int64(n)
	if err != nil {
		return fmt.Errorf("send files: %w", err)
	}
	return nil
}

func (w *blockWriter) flush() error {
	if len(w.block) == blockHeader {
		return nil
	}
	binary.LittleEndian.PutUint32(w.block, uint32(len(w.block)-blockHeader))
	err := w.emit(w.block)
	if cap(w.block) == firstBlock {
		w.block = make([]byte, blockHeader, blockHeader+maxBlock)
	}
	w.block = w.block[:blockHeader]
	if err == nil && w.onBlock != nil {
		w.onBlock(w.written)
	}
	return err
}

// room returns free space of at least the given size, which commit then takes into the stream.
func (w *blockWriter) room(least int) ([]byte, error) {
	if cap(w.block)-len(w.block) < least {
		if err := w.flush(); err != nil {
			return nil, err
		}
	}
	return w.block[len(w.block):cap(w.block)], nil
}

func (w *blockWriter) commit(n int) { w.block = w.block[:len(w.block)+n] }

// Write puts bytes of any length into the stream.
func (w *blockWriter) Write(p []byte) (int, error) {
	total := len(p)
	for len(p) > 0 {
		space, err := w.room(1)
		if err != nil {
			return total - len(p), err
		}
		n := copy(space, p)
		w.commit(n)
		p = p[n:]
	}
	return total, nil
}

func (w *blockWriter) finish() error {
	if err := w.flush(); err != nil {
		return err
	}
	var end [blockHeader]byte
	w.digest.Write(end[:])
	n, err := w.out.Write(w.digest.Sum(end[:]))
	w.written += int64(n)
	if err != nil {
		return fmt.Errorf("send files: %w", err)
	}
	if w.onBlock != nil {
		w.onBlock(w.written)
	}
	return nil
}

// blockReader gives back the payload of the blocks as one sequence of bytes.
type blockReader struct {
	in     io.Reader
	digest hash.Hash
	buffer []byte
	unread []byte
	hashed chan struct{} // closed when the digest has taken the block; nil if it already has
	ended  bool
}

func newBlockReader(in io.Reader) (*blockReader, error) {
	r := &blockReader{in: in, digest: sha256.New()}
	head := make([]byte, len(streamMagic)+1)
	if err := r.fill(head, "its beginning"); err != nil {
		return nil, err
	}
	if string(head[:len(streamMagic)]) != streamMagic {
		return nil, fmt.Errorf("%w: it does not begin with the expected bytes", ErrCorrupt)
	}
	if version := head[len(streamMagic)]; version != streamVersion {
		return nil, fmt.Errorf("%w (version %d, expected %d)", ErrVersion, version, streamVersion)
	}
	r.digest.Write(head)
	return r, nil
}

func (r *blockReader) fill(p []byte, what string) error {
	_, err := io.ReadFull(r.in, p)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it ends within %s", ErrCorrupt, what)
	}
	if err != nil {
		return fmt.Errorf("receive files: %w", err)
	}
	return nil
}

// settle waits until the digest no longer reads the buffer.
func (r *blockReader) settle() {
	if r.hashed != nil {
		<-r.hashed
		r.hashed = nil
	}
}

// load reads the next block. It returns io.EOF at the end of the stream, whose digest was right.
func (r *blockReader) load() error {
	if r.ended {
		return io.EOF
	}
	r.settle()
	var head [blockHeader]byte
	if err := r.fill(head[:], "a block's length"); err != nil {
		return err
	}
	r.digest.Write(head[:])
	length := binary.LittleEndian.Uint32(head[:])
	if length == 0 {
		return r.verify()
	}
	if length > maxBlock {
		return fmt.Errorf("%w: a block announces %d bytes, at most %d are allowed", ErrCorrupt, length,
			maxBlock)
	}
	if cap(r.buffer) < int(length) {
		r.buffer = make([]byte, length)
	}
	block := r.buffer[:length]
	if err := r.fill(block, "a block"); err != nil {
		return err
	}
	r.hash(block)
	r.unread = block
	return nil
}

func (r *blockReader) hash(block []byte) {
	if len(block) < largeBlock {
		r.digest.Write(block)
		return
	}
	done := make(chan struct{})
	go func() {
		r.digest.Write(block)
		close(done)
	}()
	r.hashed = done
}

func (r *blockReader) verify() error {
	sum := make([]byte, sha256.Size)
	if err := r.fill(sum, "its digest"); err != nil {
		return err
	}
	if string(sum) != string(r.digest.Sum(nil)) {
		return fmt.Errorf("%w: its digest does not match", ErrCorrupt)
	}
	r.ended = true
	return io.EOF
}

// next returns between 1 and limit bytes that are valid until the following call.
func (r *blockReader) next(limit int64) ([]byte, error) {
	if len(r.unread) == 0 {
		if err := r.load(); err != nil {
			return nil, unexpected(err)
		}
	}
	n := min(int64(len(r.unread)), limit)
	piece := r.unread[:n]
	r.unread = r.unread[n:]
	return piece, nil
}

// ReadByte lets the codec read variable-length integers.
func (r *blockReader) ReadByte() (byte, error) {
	piece, err := r.next(1)
	if err != nil {
		return 0, err
	}
	return piece[0], nil
}

// end succeeds if the stream ends here, whole.
func (r *blockReader) end() error {
	if len(r.unread) != 0 {
		return fmt.Errorf("%w: there are %d bytes behind its end", ErrCorrupt, len(r.unread))
	}
	err := r.load()
	if err == nil {
		return fmt.Errorf("%w: there are blocks behind its end", ErrCorrupt)
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: it ends within a record", ErrCorrupt)
	}
	return err
}

// nowhere stands for a digest that nobody needs.
type nowhere struct{}

func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (nowhere) Sum(b []byte) []byte         { return b }
func (nowhere) Reset()                      {}
func (nowhere) Size() int                   { return 0 }
func (nowhere) BlockSize() int              { return 1 }
