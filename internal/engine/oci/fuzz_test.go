package oci

import (
	"bytes"
	"testing"

	"github.com/godwit/godwit/internal/engine"
)

// FuzzLines checks that the entries of a log do not depend on how it is split into pieces, that none is too
// long, and that nothing is lost except times.
func FuzzLines(f *testing.F) {
	f.Add([]byte("2026-01-02T03:04:05.678Z hello\nworld\n"), 3)
	f.Add([]byte("2026-01-02T03:04:05Z \n\n x"), 1)
	f.Add(bytes.Repeat([]byte{0}, 100), 7)
	f.Fuzz(func(t *testing.T, log []byte, piece int) {
		if piece <= 0 {
			return
		}
		whole, pieces := linesOf(t, log, len(log)+1), linesOf(t, log, piece)
		if len(whole) != len(pieces) {
			t.Fatalf("%d entries, and %d in pieces of %d bytes", len(whole), len(pieces), piece)
		}
		for i, entry := range whole {
			if !bytes.Equal(entry.Data, pieces[i].Data) || !entry.Time.Equal(pieces[i].Time) {
				t.Errorf("entry %d is %q, and in pieces %q", i, entry.Data, pieces[i].Data)
			}
			if len(entry.Data) > maxLine || !bytes.Contains(log, entry.Data) {
				t.Errorf("entry %q is not in the log", entry.Data)
			}
		}
	})
}

func linesOf(t *testing.T, log []byte, piece int) (all []engine.LogEntry) {
	lines := NewLines("stdout", func(e engine.LogEntry) error {
		all = append(all, e)
		return nil
	})
	for ; len(log) > 0; log = log[min(piece, len(log)):] {
		if _, err := lines.Write(log[:min(piece, len(log))]); err != nil {
			t.Fatal(err)
		}
	}
	if err := lines.Flush(); err != nil {
		t.Fatal(err)
	}
	return all
}

// FuzzBlanks checks that Blanks counts the blanks before the log, and no others.
func FuzzBlanks(f *testing.F) {
	f.Add([]byte("   {\"log\":\"x\"}"))
	f.Add([]byte("    "))
	f.Fuzz(func(t *testing.T, log []byte) {
		got, err := Blanks(bytes.NewReader(log))
		if want := int64(len(log) - len(bytes.TrimLeft(log, " "))); err != nil || got != want {
			t.Errorf("%d blanks, %v, want %d", got, err, want)
		}
	})
}
