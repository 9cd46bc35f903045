package kernel

import (
	"strings"
	"testing"
)

// TestParseLocked finds the locked mapping among others, and refuses an unreadable one.
func TestParseLocked(t *testing.T) {
	const smaps = "7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \nSize:                  4 " +
		"kB\nVmFlags: rd wr mr mw me ac \n" +
		"7f0000002000-7f0000004000 rw-p 00000000 00:00 0          [heap]\nLocked:                8 " +
		"kB\nVmFlags: rd wr mr mw me lo ac \n" +
		"7f0000005000-7f0000006000 r--p 00000000 08:01 12 /lib/lo x\nVmFlags: rd mr mw me loo \n"
	locked, err := parseLocked(strings.NewReader(smaps))
	if err != nil || len(locked) != 1 || locked[0].Start != 0x7f0000002000 || locked[0].Name != "[heap]" {
		t.Errorf("%+v, %v", locked, err)
	}
	if _, err := parseLocked(strings.NewReader("what is this\nVmFlags: lo \n")); err == nil {
		t.Error("accepted")
	}
}

// TestMappingsThatGrow parses a mapping that is listed twice because it has grown, a mapping within it, and
// a mapping of a file.
func TestMappingsThatGrow(t *testing.T) {
	const maps = "7f0000000000-7f0000003000 rw-p 00000000 00:00 0 \n7f0000000000-7f0000006000 rw-p " +
		"00000000 00:00 0 \n" +
		"7f0000004000-7f0000005000 r--p 00000000 00:00 0 \n7f0000008000-7f0000009000 r--p 00000000 08:01 " +
		"12 /lib/x\n" +
		"7f0000008000-7f000000b000 r--p 00002000 08:01 12 /lib/x\n"
	all, err := parseMappings(strings.NewReader(maps))
	if err != nil || len(all) != 4 {
		t.Fatalf("%+v, %v", all, err)
	}
	for i, want := range []Mapping{
		{Start: 0x7f0000000000, End: 0x7f0000003000}, {Start: 0x7f0000003000, End: 0x7f0000006000},
		{Start: 0x7f0000008000, End: 0x7f0000009000},
		{Start: 0x7f0000009000, End: 0x7f000000b000, Offset: 0x3000},
	} {
		if got := all[i]; got.Start != want.Start || got.End != want.End || got.Offset != want.Offset {
			t.Errorf("mapping %d: %+v, want %+v", i, got, want)
		}
	}
}
