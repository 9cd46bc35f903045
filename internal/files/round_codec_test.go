package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// transcript is a sink that records its calls.
type transcript struct{ lines []string }

func (s *transcript) say(format string, args ...any) error {
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
	return nil
}

func (s *transcript) round(number uint64, kind roundKind) error {
	return s.say("round %d %d", number, kind)
}
func (s *transcript) tree(kind TreeKind, name string) error { return s.say("tree %s %q", kind, name) }
func (s *transcript) directory(name string) error           { return s.say("directory %q", name) }
func (s *transcript) enter(name string) error               { return s.say("enter %q", name) }
func (s *transcript) leave(e *Entry) error                  { return s.say("leave %+v", *e) }
func (s *transcript) up() error                             { return s.say("up") }
func (s *transcript) other(e *Entry) error                  { return s.say("other %+v", *e) }
func (s *transcript) change(e *Entry, c contentKind) error  { return s.say("change %+v %d", *e, c) }
func (s *transcript) remove(name string) error              { return s.say("remove %q", name) }
func (s *transcript) park(name string, n uint64) error      { return s.say("park %q %d", name, n) }
func (s *transcript) placeDirectory(n uint64, name string) error {
	return s.say("placeDirectory %d %q", n, name)
}
func (s *transcript) place(n uint64, e *Entry, c contentKind) error {
	return s.say("place %d %+v %d", n, *e, c)
}
func (s *transcript) link(name string, n uint64) error { return s.say("link %q %d", name, n) }
func (s *transcript) forget(n uint64) error            { return s.say("forget %d", n) }
func (s *transcript) data(offset int64, piece []byte) error {
	return s.say("data %d %q", offset, piece)
}
func (s *transcript) hole(offset, length int64) error { return s.say("hole %d %d", offset, length) }
func (s *transcript) keep(offset, length int64) error { return s.say("keep %d %d", offset, length) }
func (s *transcript) copy(offset, from, length int64) error {
	return s.say("copy %d %d %d", offset, from, length)
}
func (s *transcript) done(offset int64) error { return s.say("done %d", offset) }

// forgeRound makes a complete round with the output of write.
func forgeRound(t testing.TB, number uint64, kind roundKind, write func(w *roundWriter)) []byte {
	t.Helper()
	var stream bytes.Buffer
	w, err := newRoundWriter(&stream, number, kind, nil)
	if err != nil {
		t.Fatal(err)
	}
	write(w)
	if err := w.end(); err != nil {
		t.Fatal(err)
	}
	return stream.Bytes()
}

// oneOfEach writes every kind of record.
func oneOfEach(w *roundWriter) {
	root := Entry{Mode: unix.S_IFDIR | 0o755}
	file := Entry{Name: "f", Mode: unix.S_IFREG | 0o640, UID: 1, GID: 1<<32 - 1, Size: 100, Stored: 512,
		Modified: Timestamp{Seconds: -1, Nanoseconds: 999_999_999}, Flags: flagAppend,
		Xattrs: []Xattr{{Name: "user.a", Value: []byte("b")}}}
	w.tree(VolumeOf, "data")
	w.directory("d")
	w.enter("e")
	w.up()
	w.leave(&Entry{Mode: unix.S_IFDIR | 0o1777, Accessed: Timestamp{Seconds: 1 << 40}})
	w.other(&Entry{Name: "\xff", Mode: unix.S_IFLNK | 0o777, Target: "../..", Links: 7})
	w.other(&Entry{Name: "n", Mode: unix.S_IFCHR, Device: 259})
	w.other(&file)
	w.hole(10)
	w.bytes([]byte("content"))
	w.endContent()
	w.change(&file, keepContent)
	w.change(&file, inPlace)
	w.keep(5)
	w.bytes([]byte("x"))
	w.endContent()
	w.remove("r")
	w.park("p", 3)
	w.place(3, &file, withCopies)
	w.copy(1<<50, 60)
	w.hole(40)
	w.endContent()
	w.placeDirectory(4, "q")
	w.leave(&root)
	w.link("l", 7)
	w.forget(7)
	w.leave(&root)
}

func TestRoundComesOutAsItWentIn(t *testing.T) {
	stream := forgeRound(t, 12, finalRound, oneOfEach)
	var got transcript
	in := bytes.NewReader(append(stream, "behind"...))
	kind, err := readRound(context.Background(), in, &got)
	if err != nil || kind != finalRound {
		t.Fatalf("kind %d, %v", kind, err)
	}
	if rest, _ := io.ReadAll(in); string(rest) != "behind" {
		t.Errorf("%q is left behind the round", rest)
	}
	var names []string
	for _, line := range got.lines {
		name, _, _ := strings.Cut(line, " ")
		names = append(names, name)
	}
	want := strings.Fields(`round tree directory enter up leave other other other hole data done change change keep data done
		remove park place copy hole done placeDirectory leave link forget leave`)
	if !reflect.DeepEqual(names, want) {
		t.Fatalf("records:\n%s", strings.Join(got.lines, "\n"))
	}
	for i, line := range map[int]string{
		0: "round 12 1", 1: `tree volume "data"`, 9: "hole 0 10", 10: `data 10 "content"`, 11: "done 17",
		14: "keep 0 5", 18: `park "p" 3`, 20: "copy 0 1125899906842624 60", 21: "hole 60 40",
		25: `link "l" 7`,
	} {
		if got.lines[i] != line {
			t.Errorf("record %d is %s, want %s", i, got.lines[i], line)
		}
	}
	if !strings.Contains(got.lines[19], "Name:f Mode:33184 UID:1 GID:4294967295 Size:100 Stored:512") ||
		!strings.Contains(got.lines[19], "Modified:{Seconds:-1 Nanoseconds:999999999} Flags:32") ||
		!strings.HasSuffix(got.lines[19], " 2") {
		t.Errorf("entry: %s", got.lines[19])
	}
}

func TestRoundsOfWhichAPieceIsMissingOrDamaged(t *testing.T) {
	stream := forgeRound(t, 1, liveRound, oneOfEach)
	for length := range stream {
		if _, err := readRound(context.Background(), bytes.NewReader(stream[:length]),
			&transcript{}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("cut at %d: %v", length, err)
		}
	}
	for i := range stream {
		damaged := bytes.Clone(stream)
		damaged[i] ^= 1 << (i % 8)
		if _, err := readRound(context.Background(), bytes.NewReader(damaged), &transcript{}); err == nil {
			t.Errorf("a bit of byte %d is wrong, and it was accepted", i)
		}
	}
}

func TestRulesOfARound(t *testing.T) {
	file := Entry{Name: "f", Mode: unix.S_IFREG, Size: 10}
	numbered := Entry{Name: "f", Mode: unix.S_IFIFO, Links: 2}
	root := Entry{Mode: unix.S_IFDIR}
	for what, write := range map[string]func(w *roundWriter){
		"no tree":           func(w *roundWriter) { w.up() },
		"tree in a tree":    func(w *roundWriter) { w.tree(Writable, ""); w.tree(Writable, "") },
		"end within a tree": func(w *roundWriter) { w.tree(Writable, "") },
		"round in a round":  func(w *roundWriter) { w.tree(Writable, ""); w.kind(recordRound) },
		"wrong totals":      func(w *roundWriter) { w.tree(Writable, ""); w.leave(&root); w.entries++ },
		"unknown record":    func(w *roundWriter) { w.tree(Writable, ""); w.kind(200) },
		"leave of a file":   func(w *roundWriter) { w.tree(Writable, ""); w.leave(&file) },
		"directory as other": func(w *roundWriter) {
			w.tree(Writable,
				"")
			w.other(&Entry{Name: "d", Mode: unix.S_IFDIR})
		},
		"number 0":    func(w *roundWriter) { w.tree(Writable, ""); w.link("l", 0) },
		"parked as 0": func(w *roundWriter) { w.tree(Writable, ""); w.park("l", 0) },
		"two numbers": func(w *roundWriter) {
			w.tree(Writable, "")
			w.place(3, &numbered,
				keepContent)
		},
		"unknown content":   func(w *roundWriter) { w.tree(Writable, ""); w.change(&file, 9) },
		"unknown operation": func(w *roundWriter) { w.tree(Writable, ""); w.other(&file); w.op(77, 1) },
		"data behind end": func(w *roundWriter) {
			w.tree(Writable,
				"")
			w.other(&file)
			w.bytes(make([]byte, 11))
		},
		"hole behind end": func(w *roundWriter) { w.tree(Writable, ""); w.other(&file); w.hole(11) },
		"keep behind end": func(w *roundWriter) {
			w.tree(Writable, "")
			w.change(&file,
				inPlace)
			w.keep(4)
			w.keep(7)
		},
		"copy behind end": func(w *roundWriter) {
			w.tree(Writable, "")
			w.change(&file, withCopies)
			w.copy(0,
				11)
		},
		"copy in place": func(w *roundWriter) {
			w.tree(Writable, "")
			w.change(&file, inPlace)
			w.copy(0,
				1)
		},
		"copy from 2^63": func(w *roundWriter) {
			w.tree(Writable, "")
			w.change(&file,
				withCopies)
			w.copy(1<<63-1, 1)
		},
		"hole of nothing": func(w *roundWriter) { w.tree(Writable, ""); w.other(&file); w.hole(0) },
		"data of nothing": func(w *roundWriter) {
			w.tree(Writable, "")
			w.other(&file)
			w.scratch = append(w.scratch, byte(opData), 0, 0, 0, 0)
		},
	} {
		t.Run(what, func(t *testing.T) {
			stream := forgeRound(t, 1, liveRound, write)
			if _, err := readRound(context.Background(), bytes.NewReader(stream),
				&transcript{}); !errors.Is(err, ErrCorrupt) {
				t.Errorf("got %v", err)
			}
		})
	}
	for _, name := range []string{"", ".", "..", "a/b", "/etc", "../x", "a\x00b", strings.Repeat("x", 256)} {
		entry := Entry{Name: name, Mode: unix.S_IFIFO}
		for what, write := range map[string]func(w *roundWriter){
			"directory":       func(w *roundWriter) { w.directory(name) },
			"enter":           func(w *roundWriter) { w.enter(name) },
			"other":           func(w *roundWriter) { w.other(&entry) },
			"change":          func(w *roundWriter) { w.change(&entry, keepContent) },
			"remove":          func(w *roundWriter) { w.remove(name) },
			"park":            func(w *roundWriter) { w.park(name, 1) },
			"place":           func(w *roundWriter) { w.place(1, &entry, keepContent) },
			"place directory": func(w *roundWriter) { w.placeDirectory(1, name) },
			"link":            func(w *roundWriter) { w.link(name, 1) },
		} {
			stream := forgeRound(t, 1, liveRound, func(w *roundWriter) { w.tree(Writable, ""); write(w) })
			if _, err := readRound(context.Background(), bytes.NewReader(stream),
				&transcript{}); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s %q: %v", what, name, err)
			}
		}
	}
}
