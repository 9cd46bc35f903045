package output

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/engine"
)

// readLog reads a whole log.
func readLog(t *testing.T, r io.Reader) []engine.LogEntry {
	t.Helper()
	var all []engine.LogEntry
	for reader := NewReader(r); ; {
		entry, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, entry)
	}
}

func TestLogIsCompleteToTheByte(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	w, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	written := map[string]string{}
	now := time.Date(2026, 11, 20, 10, 0, 0, 1, time.UTC)
	for _, piece := range []struct{ stream, data string }{
		{"stdout", "a\n\nb"}, {"stderr", "e"}, {"stdout", "\n"},
		{"stdout", strings.Repeat("x", 3*maxLogPiece+1)},
		{"stderr", "\x00\xff\r\n"}, {"stdout", " F stdout \n"},
	} {
		if err := w.write(now, piece.stream, []byte(piece.data)); err != nil {
			t.Fatal(err)
		}
		written[piece.stream] += piece.data
	}
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	read := map[string]string{}
	for _, entry := range readLog(t, file) {
		read[entry.Stream] += string(entry.Data)
		if !entry.Time.Equal(now) {
			t.Errorf("time %v", entry.Time)
		}
	}
	for stream := range written {
		if read[stream] != written[stream] {
			t.Errorf("%s: %d bytes were written, %d are read", stream, len(written[stream]),
				len(read[stream]))
		}
	}
}

func TestLogAfterACrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	torn := "2026-11-20T10:00:00.000000001Z stdout F whole\n2026-11-20T10:00:00.000000001Z std"
	if err := os.WriteFile(path, []byte(torn), 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.write(time.Now(), "stdout", []byte("after\n")); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	entries := readLog(t, bytes.NewReader(data))
	if len(entries) != 2 || string(entries[0].Data) != "whole\n" || string(entries[1].Data) != "after\n" {
		t.Errorf("entries %+v", entries)
	}
}

func TestLogOfAFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	w := &logWriter{file: full}
	if err := w.write(time.Now(), "stdout", []byte("kept\n")); err == nil {
		t.Fatal("a write to a full disk succeeds")
	}
	path := filepath.Join(t.TempDir(), "log")
	if w.file, err = os.Create(path); err != nil {
		t.Fatal(err)
	}
	if err := w.flush(); err != nil {
		t.Fatal(err)
	}
	if err := w.flush(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil || strings.Count(string(data), "kept") != 1 {
		t.Errorf("log %q, %v", data, err)
	}
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	w, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, piece := range []string{"1\n2\n3", "3\n4\n"} {
		if err := w.write(time.Now(), "stdout", []byte(piece)); err != nil {
			t.Fatal(err)
		}
	}
	for lines, want := range map[int]string{0: "", 1: "4\n", 2: "33\n4\n", 4: "1\n2\n33\n4\n",
		99: "1\n2\n33\n4\n"} {
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := SeekTail(file, lines); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, entry := range readLog(t, file) {
			got += string(entry.Data)
		}
		if file.Close(); got != want {
			t.Errorf("the last %d lines: %q, want %q", lines, got, want)
		}
	}
}

func FuzzLog(f *testing.F) {
	f.Add([]byte("2026-11-20T10:00:00.000000001Z stdout F x\n"))
	f.Add([]byte("2026-11-20T10:00:00Z stderr P \xff\x00\n\n \n    \n"))
	f.Add(bytes.Repeat([]byte("y"), 2*maxLogLine))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, entry := range readLog(t, bytes.NewReader(data)) {
			if entry.Stream != "stdout" && entry.Stream != "stderr" {
				t.Errorf("stream %q", entry.Stream)
			}
			if len(entry.Data) > maxLogLine {
				t.Errorf("entry of %d bytes", len(entry.Data))
			}
		}
	})
}
