package copies

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

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/records"
)

// transcript is a sink that records its calls.
type transcript struct{ lines []string }

func (s *transcript) say(format string, args ...any) error {
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
	return nil
}

func (s *transcript) Round(number uint64, kind records.RoundKind) error {
	return s.say("round %d %d", number, kind)
}
func (s *transcript) Tree(kind files.TreeKind, name string) error {
	return s.say("tree %s %q", kind, name)
}
func (s *transcript) Directory(name string) error { return s.say("directory %q", name) }
func (s *transcript) Enter(name string) error     { return s.say("enter %q", name) }
func (s *transcript) Leave(e *fsys.Entry) error   { return s.say("leave %+v", *e) }
func (s *transcript) Up() error                   { return s.say("up") }
func (s *transcript) Other(e *fsys.Entry) error   { return s.say("other %+v", *e) }
func (s *transcript) Change(e *fsys.Entry, c records.ContentKind) error {
	return s.say("change %+v %d", *e, c)
}
func (s *transcript) Remove(name string) error         { return s.say("remove %q", name) }
func (s *transcript) Park(name string, n uint64) error { return s.say("park %q %d", name, n) }
func (s *transcript) PlaceDirectory(n uint64, name string) error {
	return s.say("placeDirectory %d %q", n, name)
}
func (s *transcript) Place(n uint64, e *fsys.Entry, c records.ContentKind) error {
	return s.say("place %d %+v %d", n, *e, c)
}
func (s *transcript) Link(name string, n uint64) error { return s.say("link %q %d", name, n) }
func (s *transcript) Forget(n uint64) error            { return s.say("forget %d", n) }
func (s *transcript) Data(offset int64, piece []byte) error {
	return s.say("data %d %q", offset, piece)
}
func (s *transcript) Hole(offset, length int64) error { return s.say("hole %d %d", offset, length) }
func (s *transcript) Keep(offset, length int64) error { return s.say("keep %d %d", offset, length) }
func (s *transcript) Copy(offset, from, length int64) error {
	return s.say("copy %d %d %d", offset, from, length)
}
func (s *transcript) Done(offset int64) error { return s.say("done %d", offset) }

// forgeRound makes a complete round with the output of write.
func forgeRound(t testing.TB, number uint64, kind records.RoundKind,
	write func(w *records.RoundWriter)) []byte {
	t.Helper()
	var stream bytes.Buffer
	w, err := records.NewRoundWriter(&stream, number, kind, nil)
	if err != nil {
		t.Fatal(err)
	}
	write(w)
	if err := w.End(); err != nil {
		t.Fatal(err)
	}
	return stream.Bytes()
}

// oneOfEach writes every kind of record.
func oneOfEach(w *records.RoundWriter) {
	root := fsys.Entry{Mode: unix.S_IFDIR | 0o755}
	file := fsys.Entry{Name: "f", Mode: unix.S_IFREG | 0o640, UID: 1, GID: 1<<32 - 1, Size: 100, Stored: 512,
		Modified: fsys.Timestamp{Seconds: -1, Nanoseconds: 999_999_999}, Flags: fsys.FlagAppend,
		Xattrs: []fsys.Xattr{{Name: "user.a", Value: []byte("b")}}}
	w.Tree(files.VolumeOf, "data")
	w.Directory("d")
	w.Enter("e")
	w.Up()
	w.Leave(&fsys.Entry{Mode: unix.S_IFDIR | 0o1777, Accessed: fsys.Timestamp{Seconds: 1 << 40}})
	w.Other(&fsys.Entry{Name: "\xff", Mode: unix.S_IFLNK | 0o777, Target: "../..", Links: 7})
	w.Other(&fsys.Entry{Name: "n", Mode: unix.S_IFCHR, Device: 259})
	w.Other(&file)
	w.Hole(10)
	w.Bytes([]byte("content"))
	w.EndContent()
	w.Change(&file, records.KeepContent)
	w.Change(&file, records.InPlace)
	w.Keep(5)
	w.Bytes([]byte("x"))
	w.EndContent()
	w.Remove("r")
	w.Park("p", 3)
	w.Place(3, &file, records.WithCopies)
	w.Copy(1<<50, 60)
	w.Hole(40)
	w.EndContent()
	w.PlaceDirectory(4, "q")
	w.Leave(&root)
	w.Link("l", 7)
	w.Forget(7)
	w.Leave(&root)
}

func TestRoundComesOutAsItWentIn(t *testing.T) {
	stream := forgeRound(t, 12, records.FinalRound, oneOfEach)
	var got transcript
	in := bytes.NewReader(append(stream, "behind"...))
	kind, err := records.ReadRound(context.Background(), in, &got)
	if err != nil || kind != records.FinalRound {
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
	stream := forgeRound(t, 1, records.LiveRound, oneOfEach)
	for length := range stream {
		if _, err := records.ReadRound(context.Background(), bytes.NewReader(stream[:length]),
			&transcript{}); !errors.Is(err, records.ErrCorrupt) {
			t.Errorf("cut at %d: %v", length, err)
		}
	}
	for i := range stream {
		damaged := bytes.Clone(stream)
		damaged[i] ^= 1 << (i % 8)
		if _, err := records.ReadRound(context.Background(), bytes.NewReader(damaged),
			&transcript{}); err == nil {
			t.Errorf("a bit of byte %d is wrong, and it was accepted", i)
		}
	}
}

func TestRulesOfARound(t *testing.T) {
	file := fsys.Entry{Name: "f", Mode: unix.S_IFREG, Size: 10}
	numbered := fsys.Entry{Name: "f", Mode: unix.S_IFIFO, Links: 2}
	root := fsys.Entry{Mode: unix.S_IFDIR}
	for what, write := range map[string]func(w *records.RoundWriter){
		"no tree": func(w *records.RoundWriter) { w.Up() },
		"tree in a tree": func(w *records.RoundWriter) {
			w.Tree(files.Writable, "")
			w.Tree(files.Writable, "")
		},
		"end within a tree": func(w *records.RoundWriter) { w.Tree(files.Writable, "") },
		"round in a round": func(w *records.RoundWriter) {
			w.Tree(files.Writable, "")
			w.Kind(records.RecordRound)
		},
		"wrong totals": func(w *records.RoundWriter) {
			w.Tree(files.Writable, "")
			w.Leave(&root)
			w.Entries++
		},
		"unknown record":  func(w *records.RoundWriter) { w.Tree(files.Writable, ""); w.Kind(200) },
		"leave of a file": func(w *records.RoundWriter) { w.Tree(files.Writable, ""); w.Leave(&file) },
		"directory as other": func(w *records.RoundWriter) {
			w.Tree(files.Writable,
				"")
			w.Other(&fsys.Entry{Name: "d", Mode: unix.S_IFDIR})
		},
		"number 0":    func(w *records.RoundWriter) { w.Tree(files.Writable, ""); w.Link("l", 0) },
		"parked as 0": func(w *records.RoundWriter) { w.Tree(files.Writable, ""); w.Park("l", 0) },
		"two numbers": func(w *records.RoundWriter) {
			w.Tree(files.Writable, "")
			w.Place(3, &numbered,
				records.KeepContent)
		},
		"unknown content": func(w *records.RoundWriter) { w.Tree(files.Writable, ""); w.Change(&file, 9) },
		"unknown operation": func(w *records.RoundWriter) {
			w.Tree(files.Writable, "")
			w.Other(&file)
			w.Op(77, 1)
		},
		"data behind end": func(w *records.RoundWriter) {
			w.Tree(files.Writable,
				"")
			w.Other(&file)
			w.Bytes(make([]byte, 11))
		},
		"hole behind end": func(w *records.RoundWriter) {
			w.Tree(files.Writable, "")
			w.Other(&file)
			w.Hole(11)
		},
		"keep behind end": func(w *records.RoundWriter) {
			w.Tree(files.Writable, "")
			w.Change(&file,
				records.InPlace)
			w.Keep(4)
			w.Keep(7)
		},
		"copy behind end": func(w *records.RoundWriter) {
			w.Tree(files.Writable, "")
			w.Change(&file, records.WithCopies)
			w.Copy(0,
				11)
		},
		"copy in place": func(w *records.RoundWriter) {
			w.Tree(files.Writable, "")
			w.Change(&file, records.InPlace)
			w.Copy(0,
				1)
		},
		"copy from 2^63": func(w *records.RoundWriter) {
			w.Tree(files.Writable, "")
			w.Change(&file,
				records.WithCopies)
			w.Copy(1<<63-1, 1)
		},
		"hole of nothing": func(w *records.RoundWriter) {
			w.Tree(files.Writable, "")
			w.Other(&file)
			w.Hole(0)
		},
		"data of nothing": func(w *records.RoundWriter) {
			w.Tree(files.Writable, "")
			w.Other(&file)
			w.Scratch = append(w.Scratch, byte(records.OpData), 0, 0, 0, 0)
		},
	} {
		t.Run(what, func(t *testing.T) {
			stream := forgeRound(t, 1, records.LiveRound, write)
			if _, err := records.ReadRound(context.Background(), bytes.NewReader(stream),
				&transcript{}); !errors.Is(err, records.ErrCorrupt) {
				t.Errorf("got %v", err)
			}
		})
	}
	for _, name := range []string{"", ".", "..", "a/b", "/etc", "../x", "a\x00b", strings.Repeat("x", 256)} {
		entry := fsys.Entry{Name: name, Mode: unix.S_IFIFO}
		for what, write := range map[string]func(w *records.RoundWriter){
			"directory":       func(w *records.RoundWriter) { w.Directory(name) },
			"enter":           func(w *records.RoundWriter) { w.Enter(name) },
			"other":           func(w *records.RoundWriter) { w.Other(&entry) },
			"change":          func(w *records.RoundWriter) { w.Change(&entry, records.KeepContent) },
			"remove":          func(w *records.RoundWriter) { w.Remove(name) },
			"park":            func(w *records.RoundWriter) { w.Park(name, 1) },
			"place":           func(w *records.RoundWriter) { w.Place(1, &entry, records.KeepContent) },
			"place directory": func(w *records.RoundWriter) { w.PlaceDirectory(1, name) },
			"link":            func(w *records.RoundWriter) { w.Link(name, 1) },
		} {
			stream := forgeRound(t, 1, records.LiveRound, func(w *records.RoundWriter) {
				w.Tree(files.Writable, "")
				write(w)
			})
			if _, err := records.ReadRound(context.Background(), bytes.NewReader(stream),
				&transcript{}); !errors.Is(err, records.ErrCorrupt) {
				t.Errorf("%s %q: %v", what, name, err)
			}
		}
	}
}
