package oci

import (
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/engine"
)

// TestLines checks that each line becomes an entry, that an endless line is cut, and that the last line is
// not lost.
func TestLines(t *testing.T) {
	var got []string
	l := NewLines("stdout", func(entry engine.LogEntry) error {
		if len(entry.Data) < 100 {
			got = append(got, string(entry.Data))
		}
		return nil
	})
	for _, part := range []string{"2026-01-02T03:04:05Z on", "e\ntwo\n", strings.Repeat("x", maxLine), "\n",
		"2026-01-02T03:04:05Z last"} {
		if n, err := l.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	if want := "one\n|two\n|\n|last"; strings.Join(got, "|") != want {
		t.Errorf("%q", got)
	}
}
