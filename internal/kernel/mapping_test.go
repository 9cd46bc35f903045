package kernel

import (
	"strings"
	"testing"
)

// TestParseLocked finds the locked mapping among others, and refuses one that it cannot read.
func TestParseLocked(t *testing.T) {
	const smaps = "7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \nSize:                  4 kB\nVmFlags: rd wr mr mw me ac \n" +
		"7f0000002000-7f0000004000 rw-p 00000000 00:00 0          [heap]\nLocked:                8 kB\nVmFlags: rd wr mr mw me lo ac \n" +
		"7f0000005000-7f0000006000 r--p 00000000 08:01 12 /lib/lo x\nVmFlags: rd mr mw me loo \n"
	locked, err := parseLocked(strings.NewReader(smaps))
	if err != nil || len(locked) != 1 || locked[0].Start != 0x7f0000002000 || locked[0].Name != "[heap]" {
		t.Errorf("%+v, %v", locked, err)
	}
	if _, err := parseLocked(strings.NewReader("what is this\nVmFlags: lo \n")); err == nil {
		t.Error("accepted")
	}
}
