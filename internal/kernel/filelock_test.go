package kernel

import (
	"testing"
)

func TestParseRecordLock(t *testing.T) {
	for text, want := range map[string]*RecordLock{
		"\t1: POSIX  ADVISORY  WRITE 4711 00:2b:55 0 EOF\n":   {Write: true},
		"\t2: POSIX  ADVISORY  READ  4711 00:2b:55 128 128\n": {Start: 128, Length: 1},
		"\t1: OFDLCK ADVISORY  WRITE -1 00:2b:55 0 EOF\n":     nil,
		"\t1: FLOCK  ADVISORY  WRITE 4711 00:2b:55 0 EOF\n":   nil,
		"\t1: POSIX  ADVISORY  WRITE 4711 00:2b:55 1073741824 9": {Write: true, Start: 1 << 30,
			Length: 10 - 1<<30},
	} {
		lock, ok, err := parseRecordLock(text)
		if err != nil || ok != (want != nil) || ok && lock != *want {
			t.Errorf("%q: %+v, %v, %v", text, lock, ok, err)
		}
	}
	for _, text := range []string{"", "1: POSIX", "\t1: POSIX  ADVISORY  WRITE 4711 00:2b:55 x EOF",
		"\t1: POSIX  ADVISORY  WRITE 4711 00:2b:55 0 x"} {
		if lock, ok, err := parseRecordLock(text); err == nil {
			t.Errorf("%q: %+v, %v", text, lock, ok)
		}
	}
}
