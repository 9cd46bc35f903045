package tree

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func made(t *testing.T, c Config) *tree {
	t.Helper()
	c.Dir = t.TempDir()
	made, err := open(c)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestArgs(t *testing.T) {
	want := Config{Dir: "/data", Files: 7, Size: 9, Rate: 3, Replace: true, Listen: 80, Verify: true}
	if got, err := parse(want.Args()[1:]); err != nil || got != want {
		t.Errorf("read back %+v, %v, want %+v", got, err, want)
	}
	for _, bad := range []Config{
		{Dir: "data", Files: 1, Size: 1}, {Dir: "/", Size: 1}, {Dir: "/", Files: 1},
		{Dir: "/", Files: 1, Size: 1, Rate: -1},
		{Dir: "/", Files: 1, Size: 1, Listen: 1 << 16},
	} {
		if _, err := parse(bad.Args()[1:]); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

// TestWritten: files written in either way have the expected contents, even for a process that starts anew.
func TestWritten(t *testing.T) {
	for _, c := range []Config{{Files: 30, Size: 100}, {Files: 2 * stride, Size: 1, Replace: true},
		{Files: 3, Size: 2*blockBytes + 5}} {
		one := made(t, c)
		for range 40 {
			if err := one.next(); err != nil {
				t.Fatal(err)
			}
		}
		if err := one.flip(); err != nil {
			t.Fatal(err)
		}
		again, err := open(one.Config)
		if err != nil {
			t.Fatal(err)
		}
		for _, tree := range []*tree{one, again} {
			if result := tree.verify(); result != (Result{Files: c.Files, Written: 40}) {
				t.Errorf("%+v: %+v", c, result)
			}
		}
	}
}

// TestOrder: all files have their turn.
func TestOrder(t *testing.T) {
	for _, files := range []int{1, 30, stride, 2 * stride} {
		one := &tree{Config: Config{Files: files}, written: uint64(files)}
		for file, content := range one.contents() {
			if content == 0 {
				t.Errorf("of %d files number %d has no turn", files, file)
			}
		}
	}
}

// TestWrong: every error in a copy is found.
func TestWrong(t *testing.T) {
	for what, spoil := range map[string]func(one *tree) error{
		"a byte": func(one *tree) error {
			return os.WriteFile(one.path(3), make([]byte, one.Size),
				0o644)
		},
		"an older file": func(one *tree) error {
			return one.write(one.path(one.order(1)), 0, one.order(1),
				0)
		},
		"a shorter file": func(one *tree) error { return os.Truncate(one.path(2), one.Size-1) },
		"no file":        func(one *tree) error { return os.Remove(one.path(9)) },
		"one too many": func(one *tree) error {
			return os.WriteFile(filepath.Join(one.Dir, "0", newName),
				nil, 0o644)
		},
		"a changed byte":  func(one *tree) error { one.flipped++; return nil },
		"a newer counter": func(one *tree) error { one.written++; return one.count() },
	} {
		one := made(t, Config{Files: 20, Size: 50})
		if err := one.next(); err != nil {
			t.Fatal(err)
		}
		if err := spoil(one); err != nil {
			t.Fatal(err)
		}
		if result := one.verify(); result.Bad == 0 || result.Error == "" {
			t.Errorf("%s is not found: %+v", what, result)
		}
	}
}

func TestAsk(t *testing.T) {
	k := &keeper{tree: made(t, Config{Files: 5, Size: 10})}
	ours, theirs := net.Pipe()
	defer ours.Close()
	go k.serve(theirs)
	for _, question := range []byte{AskTell, AskFlip, AskNext, AskRest, AskVerify} {
		result, err := Ask(ours, question)
		if want := (Result{Files: 5, Written: k.tree.written}); err != nil || result != want {
			t.Errorf("%c: %+v, %v", question, result, err)
		}
	}
	if err := k.turn(); err != nil || k.tree.written != 1 {
		t.Errorf("it has written %d times, %v, want one that was asked for", k.tree.written, err)
	}
	if result, err := Ask(ours, '?'); err != nil || !strings.Contains(result.Error, "question") {
		t.Errorf("nonsense: %+v, %v", result, err)
	}
}

// TestVerifyMakesNothing: a check makes no files.
func TestVerifyMakesNothing(t *testing.T) {
	dir := t.TempDir()
	if _, err := open(Config{Dir: dir, Files: 1, Size: 1, Verify: true}); err == nil {
		t.Error("a directory without files is taken for a tree")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("made %v, %v", entries, err)
	}
}
