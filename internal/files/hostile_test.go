package files

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// forge makes a whole stream, with the right digest, of records that write puts in.
func forge(t testing.TB, write func(e *encoder)) []byte {
	t.Helper()
	var stream bytes.Buffer
	out, err := newBlockWriter(&stream, nil)
	if err != nil {
		t.Fatal(err)
	}
	e := &encoder{out: out}
	write(e)
	if err := e.write(); err != nil {
		t.Fatal(err)
	}
	if err := out.finish(); err != nil {
		t.Fatal(err)
	}
	return stream.Bytes()
}

func (e *encoder) begin() { e.kind(recordTree); e.text("writable"); e.text("") }

func (e *encoder) directoryRecord(name string) { e.kind(recordDirectory); e.text(name) }

func (e *encoder) leaveRecord() { e.kind(recordLeave); e.entry(&Entry{Mode: unix.S_IFDIR | 0o755}) }

func (e *encoder) otherRecord(entry Entry) { e.kind(recordOther); e.entry(&entry) }

func (e *encoder) linkRecord(name string, n, last uint64) {
	e.kind(recordLink)
	e.text(name)
	e.number(n)
	e.number(last)
}

func (e *encoder) endRecord(trees, entries, content uint64) {
	e.kind(recordEnd)
	e.number(trees)
	e.number(entries)
	e.number(content)
}

// refused receives a stream, which must fail and leave nothing.
func refused(t *testing.T, stream []byte) error {
	t.Helper()
	dir := scratch(t)
	err := ReceiveTrees(context.Background(), bytes.NewReader(stream), into(dir), Limits{Bytes: 1 << 20, Entries: 1000})
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
	stream := forge(t, func(e *encoder) {
		e.begin()
		e.directoryRecord("d")
		e.leaveRecord()
		e.otherRecord(Entry{Name: "f", Mode: unix.S_IFREG | 0o600, Size: 3})
		e.run(1, 2)
		e.scratch = append(e.scratch, "xy"...)
		e.run(0, 0)
		e.leaveRecord()
		e.endRecord(1, 3, 2)
	})
	dir := scratch(t)
	check(t, ReceiveTrees(context.Background(), bytes.NewReader(stream), into(dir), Limits{}))
	content, err := os.ReadFile(filepath.Join(dir, "writable-", "f"))
	if err != nil || string(content) != "\x00xy" {
		t.Errorf("got %q, %v", content, err)
	}
}

func TestNamesThatLeadElsewhere(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "/etc", "../x", "a\x00b", strings.Repeat("x", 256)} {
		for what, record := range map[string]func(e *encoder){
			"directory": func(e *encoder) { e.directoryRecord(name) },
			"file":      func(e *encoder) { e.otherRecord(Entry{Name: name, Mode: unix.S_IFREG}) },
			"link": func(e *encoder) {
				e.otherRecord(Entry{Name: "ok", Mode: unix.S_IFIFO, Links: 1})
				e.linkRecord(name, 1, 0)
			},
		} {
			err := refused(t, forge(t, func(e *encoder) { e.begin(); record(e); e.leaveRecord() }))
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
	for _, record := range []func(e *encoder){
		func(e *encoder) { e.directoryRecord("way") },
		func(e *encoder) { e.otherRecord(Entry{Name: "way", Mode: unix.S_IFREG}) },
		func(e *encoder) { e.otherRecord(Entry{Name: "way", Mode: unix.S_IFIFO}) },
		func(e *encoder) { e.linkRecord("way", 1, 0) },
		func(e *encoder) { e.linkRecord("way", 1, 1) },
	} {
		refused(t, forge(t, func(e *encoder) { e.begin(); e.otherRecord(link); record(e) }))
	}
	same(t, before, snapshot(t, outside, nil))
}

func TestBrokenRules(t *testing.T) {
	regular := Entry{Name: "f", Mode: unix.S_IFREG, Size: 10}
	for what, write := range map[string]func(e *encoder){
		"no tree":             func(e *encoder) { e.directoryRecord("d") },
		"tree in a tree":      func(e *encoder) { e.begin(); e.begin() },
		"end within a tree":   func(e *encoder) { e.begin(); e.endRecord(1, 0, 0) },
		"wrong totals":        func(e *encoder) { e.begin(); e.leaveRecord(); e.endRecord(1, 1, 1) },
		"something behind":    func(e *encoder) { e.begin(); e.leaveRecord(); e.endRecord(1, 1, 0); e.number(0) },
		"unknown record":      func(e *encoder) { e.begin(); e.kind(99) },
		"nothing":             func(e *encoder) {},
		"leave of a file":     func(e *encoder) { e.begin(); e.kind(recordLeave); e.entry(&regular) },
		"directory as other":  func(e *encoder) { e.begin(); e.otherRecord(Entry{Name: "d", Mode: unix.S_IFDIR}) },
		"twice the same name": func(e *encoder) { e.begin(); e.directoryRecord("d"); e.leaveRecord(); e.directoryRecord("d") },
		"unknown type":        func(e *encoder) { e.begin(); e.otherRecord(Entry{Name: "x", Mode: 0o644}) },
		"link to nothing":     func(e *encoder) { e.begin(); e.linkRecord("l", 7, 0) },
		"content behind end":  func(e *encoder) { e.begin(); e.otherRecord(regular); e.run(5, 6) },
		"hole behind end":     func(e *encoder) { e.begin(); e.otherRecord(regular); e.run(math.MaxInt64, 1) },
		"more than agreed": func(e *encoder) {
			e.begin()
			e.otherRecord(Entry{Name: "f", Mode: unix.S_IFREG, Size: 1 << 40})
			e.run(0, 1<<40)
		},
		"bytes that never come": func(e *encoder) { e.begin(); e.otherRecord(regular); e.run(0, 10) },
		"impossible flags":      func(e *encoder) { e.begin(); e.otherRecord(Entry{Name: "f", Mode: unix.S_IFREG, Flags: 0x80000}) },
		"foreign attribute": func(e *encoder) {
			e.begin()
			e.otherRecord(Entry{Name: "f", Mode: unix.S_IFREG, Xattrs: []Xattr{{Name: "system.nfs4_acl"}}})
		},
		"stored 2^63": func(e *encoder) {
			e.begin()
			e.otherRecord(Entry{Name: "f", Mode: unix.S_IFREG, Size: 1, Stored: math.MaxInt64})
		},
		"size 2^63": func(e *encoder) {
			e.begin()
			e.kind(recordOther)
			e.text("f")
			e.number(unix.S_IFREG)
			e.number(0)
			e.number(0)
			e.number(1 << 63)
		},
		"name of 2^63 bytes": func(e *encoder) { e.begin(); e.kind(recordDirectory); e.number(1 << 63) },
		"endless number": func(e *encoder) {
			e.begin()
			e.kind(recordDirectory)
			e.scratch = append(e.scratch, bytes.Repeat([]byte{0xff}, 30)...)
		},
	} {
		t.Run(what, func(t *testing.T) { refused(t, forge(t, write)) })
	}
}

func TestBrokenBlocks(t *testing.T) {
	good := forge(t, func(e *encoder) { e.begin(); e.leaveRecord(); e.endRecord(1, 1, 0) })
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

// hostileSource is small, but has one of most things.
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
	stream := send(t, Tree{Kind: Writable, Path: source})
	receive := func(ctx context.Context, place Place, limits Limits) error {
		return ReceiveTrees(ctx, bytes.NewReader(stream), place, limits)
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
	if err := ReceiveTrees(context.Background(), bytes.NewReader(stream), into(dir), Limits{}); err == nil {
		t.Error("a directory with files in it was filled")
	}
	same(t, before, snapshot(t, dir, nil))

	check(t, os.Remove(filepath.Join(target, "mine")))
	if err := ReceiveTrees(context.Background(), bytes.NewReader(stream[:len(stream)-1]), into(dir), Limits{}); err == nil {
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
		err := ReceiveTrees(context.Background(), bytes.NewReader(stream), into(dir), Limits{})
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
		err := SendTrees(context.Background(), &bytes.Buffer{}, []Tree{{Kind: Writable, Path: path}}, nil)
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	write(t, filepath.Join(dir, "big"), strings.Repeat("x", 4<<20))
	if err := SendTrees(context.Background(), brokenWriter{}, []Tree{{Kind: Writable, Path: dir}}, nil); !errors.Is(err, os.ErrClosed) {
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

// FuzzReceive gives arbitrary records, in blocks with the right digest, to the receiver.
func FuzzReceive(f *testing.F) {
	f.Add([]byte{})
	f.Add(payload(f, func(e *encoder) {
		e.begin()
		e.directoryRecord("d")
		e.otherRecord(Entry{Name: "l", Mode: unix.S_IFLNK | 0o777, Target: "/", Links: 1, Xattrs: []Xattr{{Name: "trusted.x", Value: []byte("v")}}})
		e.leaveRecord()
		e.otherRecord(Entry{Name: "f", Mode: unix.S_IFREG | 0o4755, Size: 4, Links: 2, Flags: flagImmutable})
		e.run(1, 1)
		e.scratch = append(e.scratch, 'x')
		e.run(0, 0)
		e.linkRecord("g", 2, 0)
		e.linkRecord("h", 1, 1)
		e.leaveRecord()
		e.endRecord(1, 6, 1)
	}))
	dir := f.TempDir()
	victim := filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("untouched"), 0o600); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, records []byte) {
		stream := forge(t, func(e *encoder) { e.scratch = records })
		target := filepath.Join(dir, "target")
		place := func(TreeKind, string) (string, error) { return target, nil }
		err := ReceiveTrees(context.Background(), bytes.NewReader(stream), place, Limits{Bytes: 1 << 16, Entries: 1000})
		if _, statErr := os.Lstat(target); err != nil && statErr == nil {
			t.Errorf("after %v something is left", err)
		}
		if err := RemoveTree(target); err != nil {
			t.Error(err)
		}
		if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
			t.Errorf("something was made outside: %v %v", names, err)
		}
		if content, err := os.ReadFile(victim); err != nil || string(content) != "untouched" {
			t.Errorf("the file outside now has %q, %v", content, err)
		}
	})
}

func payload(t testing.TB, write func(e *encoder)) []byte {
	t.Helper()
	e := &encoder{}
	write(e)
	return e.scratch
}
