package records

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
	StreamMagic   = "GDWT"
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

// BlockWriter collects records into blocks. After an error every call returns it.
type BlockWriter struct {
	out     io.Writer
	digest  hash.Hash
	Block   []byte // header and payload
	written int64
	onBlock func(total int64)
}

// NewBlockWriter begins a stream. Function onBlock, which may be nil, gets the bytes written so far.
func NewBlockWriter(out io.Writer, onBlock func(int64)) (*BlockWriter, error) {
	w := &BlockWriter{out: out, digest: sha256.New(), Block: make([]byte, blockHeader, firstBlock),
		onBlock: onBlock}
	return w, w.emit(append([]byte(StreamMagic), streamVersion))
}

// emit sends bytes and hashes them, at the same time if there are many.
func (w *BlockWriter) emit(piece []byte) error {
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

// Flush sends the block that is being filled.
func (w *BlockWriter) Flush() error {
	if len(w.Block) == blockHeader {
		return nil
	}
	binary.LittleEndian.PutUint32(w.Block, uint32(len(w.Block)-blockHeader))
	err := w.emit(w.Block)
	if cap(w.Block) == firstBlock {
		w.Block = make([]byte, blockHeader, blockHeader+maxBlock)
	}
	w.Block = w.Block[:blockHeader]
	if err == nil && w.onBlock != nil {
		w.onBlock(w.written)
	}
	return err
}

// room returns free space of at least the given size, which commit then takes into the stream.
func (w *BlockWriter) room(least int) ([]byte, error) {
	if cap(w.Block)-len(w.Block) < least {
		if err := w.Flush(); err != nil {
			return nil, err
		}
	}
	return w.Block[len(w.Block):cap(w.Block)], nil
}

func (w *BlockWriter) commit(n int) { w.Block = w.Block[:len(w.Block)+n] }

// Write puts bytes of any length into the stream.
func (w *BlockWriter) Write(p []byte) (int, error) {
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

// Finish ends the stream with its digest.
func (w *BlockWriter) Finish() error {
	if err := w.Flush(); err != nil {
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

// BlockReader gives back the payload of the blocks as one sequence of bytes.
type BlockReader struct {
	in     io.Reader
	digest hash.Hash
	buffer []byte
	unread []byte
	hashed chan struct{} // closed when the digest has taken the block; nil if it already has
	ended  bool
}

// NewBlockReader reads the beginning of a stream.
func NewBlockReader(in io.Reader) (*BlockReader, error) {
	r := &BlockReader{in: in, digest: sha256.New()}
	head := make([]byte, len(StreamMagic)+1)
	if err := r.fill(head, "its beginning"); err != nil {
		return nil, err
	}
	if string(head[:len(StreamMagic)]) != StreamMagic {
		return nil, fmt.Errorf("%w: it does not begin with the expected bytes", ErrCorrupt)
	}
	if version := head[len(StreamMagic)]; version != streamVersion {
		return nil, fmt.Errorf("%w (version %d, expected %d)", ErrVersion, version, streamVersion)
	}
	r.digest.Write(head)
	return r, nil
}

func (r *BlockReader) fill(p []byte, what string) error {
	_, err := io.ReadFull(r.in, p)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it ends within %s", ErrCorrupt, what)
	}
	if err != nil {
		return fmt.Errorf("receive files: %w", err)
	}
	return nil
}

// Settle waits until the digest no longer reads the buffer.
func (r *BlockReader) Settle() {
	if r.hashed != nil {
		<-r.hashed
		r.hashed = nil
	}
}

// load reads the next block. It returns io.EOF at the end of the stream, whose digest was right.
func (r *BlockReader) load() error {
	if r.ended {
		return io.EOF
	}
	r.Settle()
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

func (r *BlockReader) hash(block []byte) {
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

func (r *BlockReader) verify() error {
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
func (r *BlockReader) next(limit int64) ([]byte, error) {
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
func (r *BlockReader) ReadByte() (byte, error) {
	piece, err := r.next(1)
	if err != nil {
		return 0, err
	}
	return piece[0], nil
}

// End succeeds if the stream ends here, whole.
func (r *BlockReader) End() error {
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
