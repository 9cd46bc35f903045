package nsstate

import (
	"encoding/binary"
	"testing"
)

// policy returns the last entry of a built-in chain.
func policy(l layout, verdict int32) []byte {
	const target = 40 // struct xt_standard_target
	entry := make([]byte, l.header+target)
	binary.NativeEndian.PutUint16(entry[l.offsets:], uint16(l.header))
	binary.NativeEndian.PutUint16(entry[l.offsets+2:], uint16(len(entry)))
	binary.NativeEndian.PutUint16(entry[l.header:], target)
	binary.NativeEndian.PutUint32(entry[l.header+32:], uint32(verdict))
	return entry
}

// FuzzEntries reads arbitrary answers of the kernel.
func FuzzEntries(f *testing.F) {
	const drop = -1
	for _, l := range []layout{layoutIPv4, layoutIPv6} {
		f.Add(policy(l, accept))
		f.Add(append(policy(l, accept), policy(l, drop)...))
	}
	f.Fuzz(func(t *testing.T, entries []byte) {
		for _, l := range []layout{layoutIPv4, layoutIPv6} {
			l.onlyResolver(entries, "nat")
		}
	})
}

// TestEntries distinguishes accepting from dropping policies, and refuses unknown entries.
func TestEntries(t *testing.T) {
	const drop = -1
	for _, l := range []layout{layoutIPv4, layoutIPv6} {
		accepts := policy(l, accept)
		for name, one := range map[string]struct {
			entries []byte
			want    bool
		}{
			"none": {nil, true}, "accepts": {append(policy(l, accept), accepts...), true},
			"drops": {append(policy(l, accept), policy(l, drop)...), false},
			"cut":   {accepts[:len(accepts)-1], false}, "short": {accepts[:8], false},
			"return": {policy(l, goesBack), false},
		} {
			if got := l.onlyResolver(one.entries, "filter"); got != one.want {
				t.Errorf("%s: %v", name, got)
			}
		}
	}
}
