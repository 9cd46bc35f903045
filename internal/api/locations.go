package api

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// LocationsDigest is what hello calls the digest of a list: it is the same for lists with the same entries,
// in whatever order.
func LocationsDigest(locations []*Location) []byte {
	sorted := slices.SortedFunc(slices.Values(locations), func(a, b *Location) int {
		return cmp.Or(cmp.Compare(a.GetAddress(), b.GetAddress()),
			cmp.Compare(a.GetContainer(), b.GetContainer()), cmp.Compare(a.GetNode(), b.GetNode()))
	})
	digest := sha256.New()
	for _, one := range sorted {
		for _, text := range []string{one.GetAddress(), one.GetContainer(), one.GetNode()} {
			digest.Write(binary.BigEndian.AppendUint64(nil, uint64(len(text))))
			digest.Write([]byte(text))
		}
	}
	return digest.Sum(nil)
}

// ClaimsDigest identifies a list of claims, in any order.
func ClaimsDigest(claims []uint64) []byte {
	digest := sha256.New()
	for _, claim := range slices.Sorted(slices.Values(claims)) {
		digest.Write(binary.BigEndian.AppendUint64(nil, claim))
	}
	return digest.Sum(nil)
}
