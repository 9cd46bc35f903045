package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"

	"github.com/godwit/godwit/internal/memory"
)

// Some pages travel in CRIU's images, in the freeze: those that differ from a private mapping's
// file. Nearly all of them were written by a dynamic linker and never since. So their contents go
// ahead, and in the freeze the images refer to them, page by page: a page that has changed
// meanwhile is not among them and goes as it is. What the target writes is CRIU's image to the
// byte.

// mostKnown bounds the contents that go ahead, at both ends: they are kept in memory until the
// container has left.
const mostKnown = 64 << 20

// Known are the contents that the target has.
type Known struct {
	seed    maphash.Seed
	numbers map[uint64]uint32 // by hash; of two contents with one hash the second one is left out
	content []byte
	ahead   aheadPages // how the content leaves
}

// NewKnown knows nothing yet. Pages go as deltas to files in the layers, where they can.
func NewKnown(layers Layers) *Known {
	return &Known{seed: maphash.MakeSeed(), numbers: map[uint64]uint32{}, ahead: aheadPages{layers: layers}}
}

// Add takes a page, and tells whether there is room for more.
func (k *Known) Add(page memory.FilePage) (more bool) {
	size := len(page.Content)
	hash := maphash.Bytes(k.seed, page.Content)
	if _, there := k.numbers[hash]; !there {
		k.numbers[hash] = uint32(len(k.content) / size)
		k.content = append(k.content, page.Content...)
		k.ahead.add(page)
	}
	return len(k.content)+size <= mostKnown
}

// Empty reports whether there are none.
func (k *Known) Empty() bool { return len(k.content) == 0 }

// All are the pages as they leave ahead: what ReceiveKnown reads.
func (k *Known) All() []byte { return k.ahead.all(k.content) }

// Release ends with the files to whose pages there were deltas. The contents stay known.
func (k *Known) Release() { k.ahead.close() }

func (k *Known) find(page []byte) (number uint32, known bool) {
	number, known = k.numbers[maphash.Bytes(k.seed, page)]
	if !known {
		return 0, false
	}
	at := int(number) * len(page)
	return number, bytes.Equal(k.content[at:at+len(page)], page)
}

// literal stands for a page that follows as it is.
const literal = ^uint32(0)

// encode writes whole pages: how many they are, for each the number of a known page or literal, and
// then the literal ones.
func (k *Known) encode(pages []byte) []byte {
	size := memory.PageSize()
	table := binary.LittleEndian.AppendUint32(nil, uint32(len(pages)/size))
	var literals []byte
	for at := 0; at < len(pages); at += size {
		page := pages[at : at+size]
		number, known := k.find(page)
		if !known {
			number, literals = literal, append(literals, page...)
		}
		table = binary.LittleEndian.AppendUint32(table, number)
	}
	return append(table, literals...)
}

var errReferred = errors.New("execution state: a piece refers to pages that did not come, or is cut")

// decodeReferred makes the pages of a piece.
func decodeReferred(section io.Reader, content []byte) ([]byte, error) {
	size := memory.PageSize()
	var word [4]byte
	if _, err := io.ReadFull(section, word[:]); err != nil {
		return nil, fmt.Errorf("%w: %w", errReferred, err)
	}
	count := binary.LittleEndian.Uint32(word[:])
	if count > uint32(statePiece/size) {
		return nil, fmt.Errorf("%w: it has %d pages", errReferred, count)
	}
	table := make([]byte, 4*count)
	if _, err := io.ReadFull(section, table); err != nil {
		return nil, fmt.Errorf("%w: %w", errReferred, err)
	}
	pages := make([]byte, int(count)*size)
	for i := range int(count) {
		page := pages[i*size : (i+1)*size]
		number := binary.LittleEndian.Uint32(table[4*i:])
		if number == literal {
			if _, err := io.ReadFull(section, page); err != nil {
				return nil, fmt.Errorf("%w: %w", errReferred, err)
			}
			continue
		}
		if uint64(number) >= uint64(len(content)/size) {
			return nil, fmt.Errorf("%w: page %d of %d", errReferred, number, len(content)/size)
		}
		copy(page, content[int(number)*size:])
	}
	if n, _ := io.ReadFull(section, word[:1]); n > 0 {
		return nil, fmt.Errorf("%w: more follows", errReferred)
	}
	return pages, nil
}
