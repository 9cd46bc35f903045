package pipeline

import (
	"bytes"
	"encoding/binary"
)

// A delta is pairs of varints, in words of 8 bytes: how many words are equal, and how many differ; the
// latter follow. Everything after the last pair is equal.
const (
	wordBytes = 8
	// blockWords is the number of words compared at once to skip equal ones.
	blockWords = 16
)

// AppendDelta appends the delta that changes page old to now, or returns false if that would take more than
// limit bytes.
func AppendDelta(dst, old, now []byte, limit int) ([]byte, bool) {
	limit += len(dst)
	words := len(now) / wordBytes
	done := 0 // words done
	for at := sameUntil(old, now, 0); at < words; {
		end := at + 1
		for end < words && word(old, end) != word(now, end) {
			end++
		}
		if len(dst)+(end-at)*wordBytes+2*binary.MaxVarintLen16 > limit {
			return dst, false
		}
		dst = binary.AppendUvarint(dst, uint64(at-done))
		dst = binary.AppendUvarint(dst, uint64(end-at))
		dst = append(dst, now[at*wordBytes:end*wordBytes]...)
		done, at = end, sameUntil(old, now, end)
	}
	return dst, true
}

func word(page []byte, at int) uint64 { return binary.LittleEndian.Uint64(page[at*wordBytes:]) }

// sameUntil returns the first differing word from at on.
func sameUntil(old, now []byte, at int) int {
	words := len(now) / wordBytes
	for at < words {
		if at%blockWords == 0 && at+blockWords <= words &&
			bytes.Equal(old[at*wordBytes:(at+blockWords)*wordBytes],
				now[at*wordBytes:(at+blockWords)*wordBytes]) {
			at += blockWords
			continue
		}
		if word(old, at) != word(now, at) {
			return at
		}
		at++
	}
	return words
}

// ApplyDelta changes a page. The result must be compared with the expected digest.
func ApplyDelta(page, delta []byte) error {
	for at := uint64(0); len(delta) > 0; {
		same, n := binary.Uvarint(delta)
		if n <= 0 {
			return malformed("a delta that ends too early")
		}
		other, m := binary.Uvarint(delta[n:])
		if m <= 0 {
			return malformed("a delta that ends too early")
		}
		delta = delta[n+m:]
		left := uint64(len(page))/wordBytes - at
		if same > left || other > left-same || other*wordBytes > uint64(len(delta)) {
			return malformed("a delta of %d words after %d, with %d bytes left", other, same, len(delta))
		}
		at += same
		copy(page[at*wordBytes:], delta[:other*wordBytes])
		at, delta = at+other, delta[other*wordBytes:]
	}
	return nil
}
