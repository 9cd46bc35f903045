package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// forge makes a complete stream, with the right digest, from the output of write.
func forge(t testing.TB, write func(w *roundWriter)) []byte {
	t.Helper()
	return forgeRound(t, 1, lastRound, write)
}

func begin(w *roundWriter) { w.tree(Writable, "") }

func leave(w *roundWriter) { w.leave(&Entry{Mode: unix.S_IFDIR | 0o755}) }

// refused receives a stream, which must fail and leave nothing.
func refused(t *testing.T, stream []byte) error {
	t.Helper()
	dir := scratch(t)
	err := receiveTrees(context.Background(), bytes.NewReader(stream), into(dir),
		Limits{Bytes: 1 << 20, Entries: 1000})
	if err == nil {
		t.Fatal("a bad stream was accepted")
	}
	left, readErr := os.ReadDir(dir)
	check(t, readErr)
	if len(left) != 0 {
		t.Fatalf("after %v: %q is left", err, left[0].Name())
	}
	return err
}

func TestForgedStreamIsOtherwiseAccepted(t *testing.T) {
	stream := forge(t, func(w *roundWriter) {
		begin(w)
		w.directory("d")
		leave(w)
		w.other(&Entry{Name: "f", Mode: unix.S_IFREG | 0o600, Size: 3})
		w.hole(1)
		w.bytes([]byte("xy"))
		w.endContent()
		leave(w)
	})
	dir := scratch(t)
	check(t, receiveTrees(context.Background(), bytes.NewReader(stream), into(dir), Limits{}))
	content, err := os.ReadFile(filepath.Join(dir, "writable-", "f"))
	if err != nil || string(content) != "\x00xy" {
		t.Errorf("got %q, %v", content, err)
	}
}

func TestNamesThatLeadElsewhere(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "/etc", "../x", "a\x00b", strings.Repeat("x", 256)} {
		for what, record := range map[string]func(w *roundWriter){
			"directory": func(w *roundWriter) { w.directory(name) },
			"file":      func(w *roundWriter) { w.other(&Entry{Name: name, Mode: unix.S_IFREG}) },
			"link": func(w *roundWriter) {
				w.other(&Entry{Name: "ok", Mode: unix.S_IFIFO, Links: 1})
				w.link(name, 1)
			},
		} {
			err := refused(t, forge(t, func(w *roundWriter) { begin(w); record(w); leave(w) }))
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s %q: %v", what, name, err)
			}
		}
	}
}

func TestLinksAreNotFollowed(t *testing.T) {
	outside := scratch(t)
	write(t, filepath.Join(outside, "victim"), "untouched")
	before := snapshot(t, outside, nil)
	link := Entry{Name: "way", Mode: unix.S_IFLNK | 0o777, Target: outside, Links: 1}
	for _, record := range []func(w *roundWriter){
		func(w *roundWriter) { w.directory("way") },
		func(w *roundWriter) { w.other(&Entry{Name: "way", Mode: unix.S_IFREG}) },
		func(w *roundWriter) { w.other(&Entry{Name: "way", Mode: unix.S_IFIFO}) },
		func(w *roundWriter) { w.link("way", 1) },
		func(w *roundWriter) { w.link("way", 1) },
	} {
		refused(t, forge(t, func(w *roundWriter) { begin(w); w.other(&link); record(w) }))
	}
	same(t, before, snapshot(t, outside, nil))
}

func TestBrokenRules(t *testing.T) {
	regular := Entry{Name: "f", Mode: unix.S_IFREG, Size: 10}
	for what, write := range map[string]func(w *roundWriter){
		"no tree":           func(w *roundWriter) { w.directory("d") },
		"tree in a tree":    func(w *roundWriter) { begin(w); begin(w) },
		"end within a tree": func(w *roundWriter) { begin(w) },
		"wrong totals":      func(w *roundWriter) { begin(w); leave(w); w.content++ },
		"something behind": func(w *roundWriter) {
			begin(w)
			leave(w)
			w.kind(recordEnd)
			w.number(1)
			w.number(1)
			w.number(0)
		},
		"unknown record":  func(w *roundWriter) { begin(w); w.kind(99) },
		"nothing":         func(w *roundWriter) { w.kind(recordRound) },
		"leave of a file": func(w *roundWriter) { begin(w); w.leave(&regular) },
		"directory as other": func(w *roundWriter) {
			begin(w)
			w.other(&Entry{Name: "d",
				Mode: unix.S_IFDIR})
		},
		"twice the same name": func(w *roundWriter) {
			begin(w)
			w.directory("d")
			leave(w)
			w.directory(
				"d")
		},
		"unknown type":    func(w *roundWriter) { begin(w); w.other(&Entry{Name: "x", Mode: 0o644}) },
		"link to nothing": func(w *roundWriter) { begin(w); w.link("l", 7) },
		"content behind end": func(w *roundWriter) {
			begin(w)
			w.other(&regular)
			w.hole(5)
			w.bytes(
				[]byte("123456"))
		},
		"hole behind end": func(w *roundWriter) { begin(w); w.other(&regular); w.hole(math.MaxInt64) },
		"more than agreed": func(w *roundWriter) {
			begin(w)
			w.other(&Entry{Name: "f", Mode: unix.S_IFREG, Size: 1 << 40})
			w.bytes(make([]byte, 2<<20))
			w.endContent()
			leave(w)
		},
		"more names than agreed": func(w *roundWriter) {
			begin(w)
			for i := range 1001 {
				w.other(&Entry{Name: fmt.Sprint(i), Mode: unix.S_IFIFO})
			}
			leave(w)
		},
		"bytes that never come": func(w *roundWriter) {
			begin(w)
			w.other(&regular)
			w.scratch = append(w.scratch, byte(opData), 10, 0, 0, 0)
		},
		"impossible flags": func(w *roundWriter) {
			begin(w)
			w.other(&Entry{Name: "f", Mode: unix.S_IFREG,
				Flags: 0x80000})
		},
		"foreign attribute": func(w *roundWriter) {
			begin(w)
			w.other(&Entry{Name: "f", Mode: unix.S_IFREG, Xattrs: []Xattr{{Name: "system.nfs4_acl"}}})
		},
		"stored 2^63": func(w *roundWriter) {
			begin(w)
			w.other(&Entry{Name: "f", Mode: unix.S_IFREG, Size: 1, Stored: math.MaxInt64})
		},
		"size 2^63": func(w *roundWriter) {
			begin(w)
			w.kind(recordOther)
			w.text("f")
			w.number(unix.S_IFREG)
			w.number(0)
			w.number(0)
			w.number(1 << 63)
		},
		"name of 2^63 bytes": func(w *roundWriter) { begin(w); w.kind(recordDirectory); w.number(1 << 63) },
		"endless number": func(w *roundWriter) {
			begin(w)
			w.kind(recordDirectory)
			w.scratch = append(w.scratch, bytes.Repeat([]byte{0xff}, 30)...)
		},
	} {
		t.Run(what, func(t *testing.T) { refused(t, forge(t, write)) })
	}
}

func TestBrokenBlocks(t *testing.T) {
	good := forge(t, func(w *roundWriter) { begin(w); leave(w) })
	version := bytes.Clone(good)
	version[len(streamMagic)]++
	if err := refused(t, version); !errors.Is(err, ErrVersion) {
		t.Errorf("another version: %v", err)
	}
	if err := refused(t, []byte("SSH-2.0-OpenSSH_9.2 and so on")); !errors.Is(err, ErrCorrupt) {
		t.Errorf("garbage: %v", err)
	}
	if err := refused(t, append(bytes.Clone(good[:5]), 0xff, 0xff, 0xff, 0xff)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a block of 4 GiB: %v", err)
	}
}

// hostileSource is small, but has most kinds of entries.
func hostileSource(t *testing.T) string {
	t.Helper()
	source := scratch(t)
	check(t, os.MkdirAll(filepath.Join(source, "d/e"), 0o755))
	write(t, filepath.Join(source, "d/f"), "content")
	check(t, os.Link(filepath.Join(source, "d/f"), filepath.Join(source, "g")))
	check(t, os.Symlink("g", filepath.Join(source, "s")))
	write(t, filepath.Join(source, "i"), "")
	check(t, os.Link(filepath.Join(source, "i"), filepath.Join(source, "j")))
	setFlags(t, filepath.Join(source, "i"), flagImmutable)
	setFlags(t, filepath.Join(source, "d/e"), flagImmutable)
	return source
}

func TestTruncatedAnywhere(t *testing.T) {
	stream := send(t, Tree{Kind: Writable, Path: hostileSource(t)})
	for length := range stream {
		if err := refused(t, stream[:length]); !errors.Is(err, ErrCorrupt) {
			t.Errorf("cut at %d: %v", length, err)
		}
	}
}

func TestDamagedAnywhere(t *testing.T) {
	stream := send(t, Tree{Kind: Writable, Path: hostileSource(t)})
	for i := range stream {
		damaged := bytes.Clone(stream)
		damaged[i] ^= 1 << (i % 8)
		refused(t, damaged)
	}
}

func TestLimitsAndPlaces(t *testing.T) {
	source := scratch(t)
	write(t, filepath.Join(source, "a"), "12345")
	check(t, os.Mkdir(filepath.Join(source, "b"), 0o700))
	stream := send(t, Tree{Kind: Writable, Path: source})
	receive := func(ctx context.Context, place Place, limits Limits) error {
		return receiveTrees(ctx, bytes.NewReader(stream), place, limits)
	}
	dir := scratch(t)
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	for what, err := range map[string]error{
		"bytes":     receive(context.Background(), into(dir), Limits{Bytes: 4}),
		"entries":   receive(context.Background(), into(dir), Limits{Entries: 1}),
		"cancelled": receive(cancelled, into(dir), Limits{}),
		"refused": receive(context.Background(), func(TreeKind, string) (string, error) {
			return "", errors.New("not expected here")
		}, Limits{}),
		"no parent": receive(context.Background(), into(filepath.Join(dir, "missing")), Limits{}),
	} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("%q is left", left[0].Name())
	}
}

func TestOnlyEmptyDirectoriesAreFilled(t *testing.T) {
	source, dir := scratch(t), scratch(t)
	write(t, filepath.Join(source, "a"), "12345")
	stream := send(t, Tree{Kind: Writable, Path: source})
	target := filepath.Join(dir, "writable-")
	check(t, os.Mkdir(target, 0o755))
	write(t, filepath.Join(target, "mine"), "precious")
	before := snapshot(t, dir, nil)
	if err := receiveTrees(context.Background(), bytes.NewReader(stream), into(dir), Limits{}); err == nil {
		t.Error("a directory with files in it was filled")
	}
	same(t, before, snapshot(t, dir, nil))

	check(t, os.Remove(filepath.Join(target, "mine")))
	if err := receiveTrees(context.Background(), bytes.NewReader(stream[:len(stream)-1]), into(dir),
		Limits{}); err == nil {
		t.Error("a truncated stream was accepted")
	}
	if left, err := os.ReadDir(target); err != nil || len(left) > 0 {
		t.Errorf("a directory that was there must stay, and be empty again: %v %v", left, err)
	}
}

func TestNoSpace(t *testing.T) {
	source, dir := scratch(t), scratch(t)
	write(t, filepath.Join(source, "few"), strings.Repeat("x", 300<<10))
	write(t, filepath.Join(source, "some"), strings.Repeat("x", 900<<10))
	write(t, filepath.Join(source, "more"), strings.Repeat("x", 3<<20))
	check(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { check(t, unix.Unmount(dir, 0)) })
	for _, name := range []string{"more", "some"} {
		stream := send(t, Tree{Kind: Writable, Path: source})
		err := receiveTrees(context.Background(), bytes.NewReader(stream), into(dir), Limits{})
		var space *NoSpaceError
		if !errors.As(err, &space) || !errors.Is(err, unix.ENOSPC) || space.Needed < 300<<10 {
			t.Fatalf("got %v", err)
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("%q is left", left[0].Name())
		}
		check(t, os.Remove(filepath.Join(source, name)))
	}
	if err := CheckSpace(dir, 2<<20); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("2 MiB in a file system of 1 MiB: %v", err)
	}
	check(t, CheckSpace(dir, 1<<19))
}

func TestSourceErrors(t *testing.T) {
	dir := scratch(t)
	file := filepath.Join(dir, "file")
	write(t, file, "x")
	for _, path := range []string{file, filepath.Join(dir, "missing")} {
		err := sendTrees(context.Background(), &bytes.Buffer{}, []Tree{{Kind: Writable, Path: path}}, nil)
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	write(t, filepath.Join(dir, "big"), strings.Repeat("x", 4<<20))
	if err := sendTrees(context.Background(), brokenWriter{}, []Tree{{Kind: Writable, Path: dir}},
		nil); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed connection: %v", err)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write(p []byte) (int, error) {
	if len(p) > 100 {
		return 0, os.ErrClosed
	}
	return len(p), nil
}

// FuzzMirror gives arbitrary records, in blocks with the right digest, to a mirror with entries of every
// kind.
func FuzzMirror(f *testing.F) {
	f.Add([]byte{})
	f.Add(payload(f, oneOfEach))
	f.Add(payload(f, func(w *roundWriter) { fuzzBase(w) }))
	f.Add(payload(f, func(w *roundWriter) {
		begin(w)
		w.enter("d")
		w.park("f", 3)
		w.up()
		w.place(3, &Entry{Name: "moved", Mode: unix.S_IFREG | 0o600, Size: 6}, withCopies)
		w.copy(1, 3)
		w.bytes([]byte("x"))
		w.keep(2)
		w.endContent()
		w.link("another", 1)
		w.change(&Entry{Name: "l", Mode: unix.S_IFLNK | 0o777, Target: "/", Links: 1}, keepContent)
		w.remove("g")
		w.forget(1)
		leave(w)
	}))
	dir := f.TempDir()
	victim := filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("untouched"), 0o600); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		target := filepath.Join(dir, "target")
		place := func(TreeKind, string) (string, error) { return target, nil }
		m := NewMirror(place, Limits{Bytes: 1 << 16, Entries: 1000})
		if _, err := m.Round(context.Background(),
			bytes.NewReader(forgeRound(t, 1, liveRound, fuzzBase))); err != nil {
			t.Fatal(err)
		}
		stream := forgeRound(t, 2, lastRound,
			func(w *roundWriter) { w.scratch = append(w.scratch, body...) })
		if _, err := m.Round(context.Background(), bytes.NewReader(stream)); err == nil &&
			m.b.used.bytes > 1<<16 {
			t.Errorf("counted %+v", m.b.used)
		}
		if err := m.Undo(); err != nil {
			t.Error(err)
		}
		if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
			t.Errorf("something is left: %v %v", names, err)
		}
		if content, err := os.ReadFile(victim); err != nil || string(content) != "untouched" {
			t.Errorf("the file outside now has %q, %v", content, err)
		}
	})
}

// fuzzBase writes the state before the arbitrary records.
func fuzzBase(w *roundWriter) {
	begin(w)
	w.directory("d")
	w.other(&Entry{Name: "f", Mode: unix.S_IFREG | 0o4755, Size: 4})
	w.hole(1)
	w.bytes([]byte("x"))
	w.endContent()
	leave(w)
	w.other(&Entry{Name: "l", Mode: unix.S_IFLNK | 0o777, Target: "/", Links: 1,
		Xattrs: []Xattr{{Name: "trusted.x", Value: []byte("v")}}})
	w.other(&Entry{Name: "g", Mode: unix.S_IFREG, Links: 2, Flags: flagImmutable})
	w.endContent()
	w.link("h", 2)
	w.link("m", 1)
	leave(w)
}

// payload returns the part of a round between its first record and its last.
func payload(t testing.TB, write func(w *roundWriter)) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := newRoundWriter(&out, 1, lastRound, nil)
	if err != nil {
		t.Fatal(err)
	}
	before := len(w.out.block)
	write(w)
	return bytes.Clone(w.out.block[before:])
}
