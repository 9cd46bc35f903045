package pipeline

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"fmt"

	"github.com/godwit/godwit/internal/memory"
)

// Key is one migration's secret with which both nodes hash pages.
type Key [16]byte

// NewKey makes a key.
func NewKey() (Key, error) {
	var key Key
	if _, err := rand.Read(key[:]); err != nil {
		return key, fmt.Errorf("make a key to hash pages with: %w", err)
	}
	return key, nil
}

// Digest identifies a page's content. The zero value means unknown.
type Digest [2]uint64

// Hasher hashes pages. It is for one goroutine.
//
// Two pages with the same digest count as equal, so different pages must not have equal digests, neither by
// chance nor because a process in the container constructed them. A fast hash with a seed promises neither.
// This is AES-GMAC with a constant nonce, which is GHASH, a polynomial over GF(2^128) at a secret point,
// plus a secret constant (NIST SP 800-38D, section 6.4). Two different pages of n blocks have equal digests
// for at most n of the 2^128 points, whatever their contents, as long as their author does not know the key
// (McGrew and Viega, "The Security and Performance of the Galois/Counter Mode", 2004, lemma 2): with 4 KiB
// pages 2^-120 for two of them, and 2^-77 for any two of 16 GiB. The key is used for one migration, and
// digests go to the other node only, encrypted; GMAC's own rule against using a nonce twice protects
// against those who see digests.
//
// Both architectures have instructions for it: measured 8.7 GB/s on one core of a Xeon (Sapphire Rapids),
// where XXH3-128 reaches 33, two seeded passes of maphash 4.6 and BLAKE3 1.2.
type Hasher struct {
	mac   cipher.AEAD
	nonce [12]byte
	sum   [16]byte
	zero  Digest // of a page of zeros
}

// NewHasher returns a hasher with a key.
func NewHasher(key Key) (*Hasher, error) {
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, fmt.Errorf("prepare to hash pages: %w", err)
	}
	h := &Hasher{}
	if h.mac, err = cipher.NewGCM(block); err != nil {
		return nil, fmt.Errorf("prepare to hash pages: %w", err)
	}
	h.zero = h.Page(make([]byte, memory.PageSize()))
	return h, nil
}

// Page hashes a page.
func (h *Hasher) Page(page []byte) Digest {
	sum := h.mac.Seal(h.sum[:0], h.nonce[:], nil, page)
	return Digest{binary.LittleEndian.Uint64(sum), binary.LittleEndian.Uint64(sum[8:])}
}

// check is a sum over the digests of consecutive pages. It is long enough against chance, and nobody else
// can construct one.
type check uint64

func (c check) add(d Digest) check { return c*0x9e3779b97f4a7c15 + check(d[0]^d[1]) }
