package copies

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

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/records"
)

// forge makes a complete stream, with the right digest, from the output of write.
func forge(t testing.TB, write func(w *records.RoundWriter)) []byte {
	t.Helper()
	return forgeRound(t, 1, records.LastRound, write)
}

func begin(w *records.RoundWriter) { w.Tree(files.Writable, "") }

func leave(w *records.RoundWriter) { w.Leave(&fsys.Entry{Mode: unix.S_IFDIR | 0o755}) }

// refused receives a stream, which must fail and leave nothing.
func refused(t *testing.T, stream []byte) error {
	t.Helper()
	dir := scratch(t)
	err := receiveTrees(context.Background(), bytes.NewReader(stream), into(dir),
		files.Limits{Bytes: 1 << 20, Entries: 1000})
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
	stream := forge(t, func(w *records.RoundWriter) {
		begin(w)
		w.Directory("d")
		leave(w)
		w.Other(&fsys.Entry{Name: "f", Mode: unix.S_IFREG | 0o600, Size: 3})
		w.Hole(1)
		w.Bytes([]byte("xy"))
		w.EndContent()
		leave(w)
	})
	dir := scratch(t)
	check(t, receiveTrees(context.Background(), bytes.NewReader(stream), into(dir), files.Limits{}))
	content, err := os.ReadFile(filepath.Join(dir, "writable-", "f"))
	if err != nil || string(content) != "\x00xy" {
		t.Errorf("got %q, %v", content, err)
	}
}

func TestNamesThatLeadElsewhere(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "/etc", "../x", "a\x00b", strings.Repeat("x", 256)} {
		for what, record := range map[string]func(w *records.RoundWriter){
			"directory": func(w *records.RoundWriter) { w.Directory(name) },
			"file": func(w *records.RoundWriter) {
				w.Other(&fsys.Entry{Name: name, Mode: unix.S_IFREG})
			},
			"link": func(w *records.RoundWriter) {
				w.Other(&fsys.Entry{Name: "ok", Mode: unix.S_IFIFO, Links: 1})
				w.Link(name, 1)
			},
		} {
			err := refused(t, forge(t, func(w *records.RoundWriter) { begin(w); record(w); leave(w) }))
			if !errors.Is(err, records.ErrCorrupt) {
				t.Errorf("%s %q: %v", what, name, err)
			}
		}
	}
}

func TestLinksAreNotFollowed(t *testing.T) {
	outside := scratch(t)
	write(t, filepath.Join(outside, "victim"), "untouched")
	before := snapshot(t, outside, nil)
	link := fsys.Entry{Name: "way", Mode: unix.S_IFLNK | 0o777, Target: outside, Links: 1}
	for _, record := range []func(w *records.RoundWriter){
		func(w *records.RoundWriter) { w.Directory("way") },
		func(w *records.RoundWriter) { w.Other(&fsys.Entry{Name: "way", Mode: unix.S_IFREG}) },
		func(w *records.RoundWriter) { w.Other(&fsys.Entry{Name: "way", Mode: unix.S_IFIFO}) },
		func(w *records.RoundWriter) { w.Link("way", 1) },
		func(w *records.RoundWriter) { w.Link("way", 1) },
	} {
		refused(t, forge(t, func(w *records.RoundWriter) { begin(w); w.Other(&link); record(w) }))
	}
	same(t, before, snapshot(t, outside, nil))
}

func TestBrokenRules(t *testing.T) {
	regular := fsys.Entry{Name: "f", Mode: unix.S_IFREG, Size: 10}
	for what, write := range map[string]func(w *records.RoundWriter){
		"no tree":           func(w *records.RoundWriter) { w.Directory("d") },
		"tree in a tree":    func(w *records.RoundWriter) { begin(w); begin(w) },
		"end within a tree": func(w *records.RoundWriter) { begin(w) },
		"wrong totals":      func(w *records.RoundWriter) { begin(w); leave(w); w.Content++ },
		"something behind": func(w *records.RoundWriter) {
			begin(w)
			leave(w)
			w.Kind(records.RecordEnd)
			w.Number(1)
			w.Number(1)
			w.Number(0)
		},
		"unknown record":  func(w *records.RoundWriter) { begin(w); w.Kind(99) },
		"nothing":         func(w *records.RoundWriter) { w.Kind(records.RecordRound) },
		"leave of a file": func(w *records.RoundWriter) { begin(w); w.Leave(&regular) },
		"directory as other": func(w *records.RoundWriter) {
			begin(w)
			w.Other(&fsys.Entry{Name: "d",
				Mode: unix.S_IFDIR})
		},
		"twice the same name": func(w *records.RoundWriter) {
			begin(w)
			w.Directory("d")
			leave(w)
			w.Directory(
				"d")
		},
		"unknown type": func(w *records.RoundWriter) {
			begin(w)
			w.Other(&fsys.Entry{Name: "x", Mode: 0o644})
		},
		"link to nothing": func(w *records.RoundWriter) { begin(w); w.Link("l", 7) },
		"content behind end": func(w *records.RoundWriter) {
			begin(w)
			w.Other(&regular)
			w.Hole(5)
			w.Bytes(
				[]byte("123456"))
		},
		"hole behind end": func(w *records.RoundWriter) {
			begin(w)
			w.Other(&regular)
			w.Hole(math.MaxInt64)
		},
		"more than agreed": func(w *records.RoundWriter) {
			begin(w)
			w.Other(&fsys.Entry{Name: "f", Mode: unix.S_IFREG, Size: 1 << 40})
			w.Bytes(make([]byte, 2<<20))
			w.EndContent()
			leave(w)
		},
		"more names than agreed": func(w *records.RoundWriter) {
			begin(w)
			for i := range 1001 {
				w.Other(&fsys.Entry{Name: fmt.Sprint(i), Mode: unix.S_IFIFO})
			}
			leave(w)
		},
		"bytes that never come": func(w *records.RoundWriter) {
			begin(w)
			w.Other(&regular)
			w.Scratch = append(w.Scratch, byte(records.OpData), 10, 0, 0, 0)
		},
		"impossible flags": func(w *records.RoundWriter) {
			begin(w)
			w.Other(&fsys.Entry{Name: "f", Mode: unix.S_IFREG,
				Flags: 0x80000})
		},
		"foreign attribute": func(w *records.RoundWriter) {
			begin(w)
			w.Other(&fsys.Entry{Name: "f", Mode: unix.S_IFREG,
				Xattrs: []fsys.Xattr{{Name: "system.nfs4_acl"}}})
		},
		"stored 2^63": func(w *records.RoundWriter) {
			begin(w)
			w.Other(&fsys.Entry{Name: "f", Mode: unix.S_IFREG, Size: 1, Stored: math.MaxInt64})
		},
		"size 2^63": func(w *records.RoundWriter) {
			begin(w)
			w.Kind(records.RecordOther)
			w.Text("f")
			w.Number(unix.S_IFREG)
			w.Number(0)
			w.Number(0)
			w.Number(1 << 63)
		},
		"name of 2^63 bytes": func(w *records.RoundWriter) {
			begin(w)
			w.Kind(records.RecordDirectory)
			w.Number(1 << 63)
		},
		"endless number": func(w *records.RoundWriter) {
			begin(w)
			w.Kind(records.RecordDirectory)
			w.Scratch = append(w.Scratch, bytes.Repeat([]byte{0xff}, 30)...)
		},
	} {
		t.Run(what, func(t *testing.T) { refused(t, forge(t, write)) })
	}
}

func TestBrokenBlocks(t *testing.T) {
	good := forge(t, func(w *records.RoundWriter) { begin(w); leave(w) })
	version := bytes.Clone(good)
	version[len(records.StreamMagic)]++
	if err := refused(t, version); !errors.Is(err, records.ErrVersion) {
		t.Errorf("another version: %v", err)
	}
	if err := refused(t, []byte("SSH-2.0-OpenSSH_9.2 and so on")); !errors.Is(err, records.ErrCorrupt) {
		t.Errorf("garbage: %v", err)
	}
	if err := refused(t, append(bytes.Clone(good[:5]), 0xff, 0xff, 0xff, 0xff)); !errors.Is(err,
		records.ErrCorrupt) {
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
	setFlags(t, filepath.Join(source, "i"), fsys.FlagImmutable)
	setFlags(t, filepath.Join(source, "d/e"), fsys.FlagImmutable)
	return source
}

func TestTruncatedAnywhere(t *testing.T) {
	stream := send(t, files.Tree{Kind: files.Writable, Path: hostileSource(t)})
	for length := range stream {
		if err := refused(t, stream[:length]); !errors.Is(err, records.ErrCorrupt) {
			t.Errorf("cut at %d: %v", length, err)
		}
	}
}

func TestDamagedAnywhere(t *testing.T) {
	stream := send(t, files.Tree{Kind: files.Writable, Path: hostileSource(t)})
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
	stream := send(t, files.Tree{Kind: files.Writable, Path: source})
	receive := func(ctx context.Context, place Place, limits files.Limits) error {
		return receiveTrees(ctx, bytes.NewReader(stream), place, limits)
	}
	dir := scratch(t)
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	for what, err := range map[string]error{
		"bytes":     receive(context.Background(), into(dir), files.Limits{Bytes: 4}),
		"entries":   receive(context.Background(), into(dir), files.Limits{Entries: 1}),
		"cancelled": receive(cancelled, into(dir), files.Limits{}),
		"refused": receive(context.Background(), func(files.TreeKind, string) (string, error) {
			return "", errors.New("not expected here")
		}, files.Limits{}),
		"no parent": receive(context.Background(), into(filepath.Join(dir, "missing")), files.Limits{}),
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
	stream := send(t, files.Tree{Kind: files.Writable, Path: source})
	target := filepath.Join(dir, "writable-")
	check(t, os.Mkdir(target, 0o755))
	write(t, filepath.Join(target, "mine"), "precious")
	before := snapshot(t, dir, nil)
	if err := receiveTrees(context.Background(), bytes.NewReader(stream), into(dir),
		files.Limits{}); err == nil {
		t.Error("a directory with files in it was filled")
	}
	same(t, before, snapshot(t, dir, nil))

	check(t, os.Remove(filepath.Join(target, "mine")))
	if err := receiveTrees(context.Background(), bytes.NewReader(stream[:len(stream)-1]), into(dir),
		files.Limits{}); err == nil {
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
		stream := send(t, files.Tree{Kind: files.Writable, Path: source})
		err := receiveTrees(context.Background(), bytes.NewReader(stream), into(dir), files.Limits{})
		var space *files.NoSpaceError
		if !errors.As(err, &space) || !errors.Is(err, unix.ENOSPC) || space.Needed < 300<<10 {
			t.Fatalf("got %v", err)
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("%q is left", left[0].Name())
		}
		check(t, os.Remove(filepath.Join(source, name)))
	}
	if err := files.CheckSpace(dir, 2<<20); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("2 MiB in a file system of 1 MiB: %v", err)
	}
	check(t, files.CheckSpace(dir, 1<<19))
}

func TestSourceErrors(t *testing.T) {
	dir := scratch(t)
	file := filepath.Join(dir, "file")
	write(t, file, "x")
	for _, path := range []string{file, filepath.Join(dir, "missing")} {
		err := sendTrees(context.Background(), &bytes.Buffer{}, []files.Tree{{Kind: files.Writable,
			Path: path}}, nil)
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	write(t, filepath.Join(dir, "big"), strings.Repeat("x", 4<<20))
	if err := sendTrees(context.Background(), brokenWriter{}, []files.Tree{{Kind: files.Writable, Path: dir}},
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
	f.Add(payload(f, func(w *records.RoundWriter) { fuzzBase(w) }))
	f.Add(payload(f, func(w *records.RoundWriter) {
		begin(w)
		w.Enter("d")
		w.Park("f", 3)
		w.Up()
		w.Place(3, &fsys.Entry{Name: "moved", Mode: unix.S_IFREG | 0o600, Size: 6}, records.WithCopies)
		w.Copy(1, 3)
		w.Bytes([]byte("x"))
		w.Keep(2)
		w.EndContent()
		w.Link("another", 1)
		w.Change(&fsys.Entry{Name: "l", Mode: unix.S_IFLNK | 0o777, Target: "/", Links: 1},
			records.KeepContent)
		w.Remove("g")
		w.Forget(1)
		leave(w)
	}))
	dir := f.TempDir()
	victim := filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("untouched"), 0o600); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		target := filepath.Join(dir, "target")
		place := func(files.TreeKind, string) (string, error) { return target, nil }
		m := NewMirror(place, files.Limits{Bytes: 1 << 16, Entries: 1000})
		if _, err := m.Round(context.Background(),
			bytes.NewReader(forgeRound(t, 1, records.LiveRound, fuzzBase))); err != nil {
			t.Fatal(err)
		}
		stream := forgeRound(t, 2, records.LastRound,
			func(w *records.RoundWriter) { w.Scratch = append(w.Scratch, body...) })
		if _, err := m.Round(context.Background(), bytes.NewReader(stream)); err == nil &&
			m.b.used.Bytes > 1<<16 {
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
func fuzzBase(w *records.RoundWriter) {
	begin(w)
	w.Directory("d")
	w.Other(&fsys.Entry{Name: "f", Mode: unix.S_IFREG | 0o4755, Size: 4})
	w.Hole(1)
	w.Bytes([]byte("x"))
	w.EndContent()
	leave(w)
	w.Other(&fsys.Entry{Name: "l", Mode: unix.S_IFLNK | 0o777, Target: "/", Links: 1,
		Xattrs: []fsys.Xattr{{Name: "trusted.x", Value: []byte("v")}}})
	w.Other(&fsys.Entry{Name: "g", Mode: unix.S_IFREG, Links: 2, Flags: fsys.FlagImmutable})
	w.EndContent()
	w.Link("h", 2)
	w.Link("m", 1)
	leave(w)
}

// payload returns the part of a round between its first record and its last.
func payload(t testing.TB, write func(w *records.RoundWriter)) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := records.NewRoundWriter(&out, 1, records.LastRound, nil)
	if err != nil {
		t.Fatal(err)
	}
	before := len(w.Out.Block)
	write(w)
	return bytes.Clone(w.Out.Block[before:])
}
