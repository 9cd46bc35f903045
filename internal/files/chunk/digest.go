package chunk

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"fmt"
)

// Key is a secret with which content is hashed. Only who has made the digests compares them.
type Key [16]byte

// NewKey makes a key.
func NewKey() (Key, error) {
	var key Key
	if _, err := rand.Read(key[:]); err != nil {
		return key, fmt.Errorf("make a key to hash files with: %w", err)
	}
	return key, nil
}

// Digest identifies content.
type Digest [16]byte

// piece is how much is hashed at a time; what is longer has the digest of the digests of its pieces.
const piece = 64 << 10

// Hasher hashes content that comes in pieces. It is for one goroutine.
//
// It is AES-GMAC with a secret key and a nonce that never changes, as for pages of memory, where
// its safety is explained (memory/pipeline, Hasher): whoever chooses content without knowing the
// key or a digest finds two of n blocks that have the same digest with a chance of n in 2^128. It
// takes a tenth of the time of SHA-256.
type Hasher struct {
	mac    cipher.AEAD
	nonce  [12]byte
	buffer []byte // of the present piece
	sums   []byte // of the pieces before it
	length uint64
}

// NewHasher returns a hasher with a key.
func NewHasher(key Key) (*Hasher, error) {
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, fmt.Errorf("prepare to hash files: %w", err)
	}
	mac, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("prepare to hash files: %w", err)
	}
	return &Hasher{mac: mac}, nil
}

// Write adds content. It never fails.
func (h *Hasher) Write(p []byte) {
	h.length += uint64(len(p))
	for len(p) > 0 {
		if len(h.buffer) == 0 && len(p) >= piece {
			h.sum(p[:piece])
			p = p[piece:]
			continue
		}
		if h.buffer == nil {
			h.buffer = make([]byte, 0, piece)
		}
		n := min(piece-len(h.buffer), len(p))
		h.buffer, p = append(h.buffer, p[:n]...), p[n:]
		if len(h.buffer) == piece {
			h.sum(h.buffer)
			h.buffer = h.buffer[:0]
		}
	}
}

// sum hashes a piece. Digests of very long content are hashed themselves now and then, so that
// memory is bounded.
func (h *Hasher) sum(p []byte) {
	h.sums = h.mac.Seal(h.sums, h.nonce[:], nil, p)
	if len(h.sums) >= piece {
		var folded Digest
		h.mac.Seal(folded[:0], h.nonce[:], nil, h.sums)
		h.sums = append(h.sums[:0], folded[:]...)
	}
}

// Sum returns the digest of what was written, and begins anew.
func (h *Hasher) Sum() Digest {
	if len(h.buffer) > 0 {
		h.sum(h.buffer)
	}
	for i := range 8 {
		h.sums = append(h.sums, byte(h.length>>(8*i)))
	}
	var digest Digest
	h.mac.Seal(digest[:0], h.nonce[:], nil, h.sums)
	h.buffer, h.sums, h.length = h.buffer[:0], h.sums[:0], 0
	return digest
}

// Of returns the digest of content that is in memory.
func (h *Hasher) Of(p []byte) Digest {
	h.Write(p)
	return h.Sum()
}
