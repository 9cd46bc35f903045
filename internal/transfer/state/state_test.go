package state

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

type piece struct {
	name string
	bytes.Buffer
}

func (p *piece) Close() error { return nil }

func collect(pieces *[]*piece) SectionWriter {
	return func(name string) (io.WriteCloser, error) {
		*pieces = append(*pieces, &piece{name: name})
		return (*pieces)[len(*pieces)-1], nil
	}
}

func TestStateTravelsWhileItGrows(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	pages := filepath.Join(from, "pages-1.img")
	large := bytes.Repeat([]byte("abcdefgh"), statePiece/4)
	var pieces []*piece
	sender := NewSender(from, collect(&pieces))
	put(t, pages, large[:100])
	if err := sender.pass(nil,
		func(name string) bool { return strings.HasPrefix(name, "pages-") }); err != nil {
		t.Fatal(err)
	}
	put(t, pages, large)
	put(t, filepath.Join(from, "core-1.img"), []byte("core"))
	put(t, filepath.Join(from, "empty.img"), nil)
	sent, err := sender.Rest()
	if err != nil {
		t.Fatal(err)
	}
	receiver := NewReceiver(to, int64(len(large)+4))
	for _, p := range pieces {
		if err := receiver.Piece(p.name, &p.Buffer); err != nil {
			t.Fatal(err)
		}
	}
	if err := receiver.Check(sent); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(to, "pages-1.img"))
	if err != nil || !bytes.Equal(got, large) {
		t.Fatalf("pages-1.img differs after the way, error %v", err)
	}
	delete(sent, "core-1.img")
	if receiver.Check(sent) == nil {
		t.Fatal("a file too many was not noticed")
	}
}

// TestFollowStopsWithTheDump: what is sent after the dump is complete counts as transfer, so follow
// must not go on.
func TestFollowStopsWithTheDump(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "pages-1.img"), make([]byte, 4*statePiece))
	complete := make(chan struct{})
	var pieces []*piece
	sender := NewSender(dir, func(name string) (io.WriteCloser, error) {
		if len(pieces) == 0 {
			close(complete) // while the first piece leaves
		}
		return collect(&pieces)(name)
	})
	if err := sender.Follow(t.Context(), complete); err != nil {
		t.Fatal(err)
	}
	if len(pieces) != 1 {
		t.Errorf("%d pieces were sent before follow noticed", len(pieces))
	}
	if sent, err := sender.Rest(); err != nil || sent["pages-1.img"] != 4*statePiece || len(pieces) != 4 {
		t.Errorf("then %d pieces, %v, error %v", len(pieces), sent, err)
	}
}

func TestStateReceiverRefuses(t *testing.T) {
	for _, section := range []string{
		"", "pages", "../x@0", "a/b@0", ".hidden@0", "a@-1", "a@x", "a@1", "a@9223372036854775808",
		strings.Repeat("a", 200) + "@0",
	} {
		dir := t.TempDir()
		if err := NewReceiver(dir, 100).Piece(section, strings.NewReader("x")); err == nil {
			t.Errorf("section %.40q was accepted", section)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("section %.40q left %v, error %v", section, entries, err)
		}
	}
	if err := NewReceiver(t.TempDir(), 10).Piece("a@0",
		strings.NewReader(strings.Repeat("x", 11))); err == nil {
		t.Error("more than was announced was accepted")
	}
}

func FuzzStateReceiver(f *testing.F) {
	f.Add("pages-1.img@0", []byte("x"))
	f.Add("../pages@0", []byte("x"))
	f.Fuzz(func(t *testing.T, section string, content []byte) {
		parent := t.TempDir()
		dir := filepath.Join(parent, "images")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		// Any error is right; an escape is not.
		_ = NewReceiver(dir, 64).Piece(section, bytes.NewReader(content))
		if entries, err := os.ReadDir(parent); err != nil || len(entries) != 1 {
			t.Fatalf("section %q wrote outside of its directory", section)
		}
	})
}

func put(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

var errCut = errors.New("the connection is cut")

// cutAfter collects pieces until the connection is cut: instead of piece number n, or in the middle of it.
func cutAfter(n int, within bool, pieces *[]*piece) SectionWriter {
	return func(name string) (io.WriteCloser, error) {
		if len(*pieces) < n {
			return collect(pieces)(name)
		}
		if within {
			return cutPiece{}, nil
		}
		return nil, errCut
	}
}

// cutPiece takes something, and fails.
type cutPiece struct{}

func (cutPiece) Write(data []byte) (int, error) { return len(data) / 2, errCut }
func (cutPiece) Close() error                   { return errCut }

// TestEveryPieceMayBeTheLast: wherever the connection is cut, the source says so, and the target
// does not take what has come for all.
func TestEveryPieceMayBeTheLast(t *testing.T) {
	from := t.TempDir()
	put(t, filepath.Join(from, "pages-1.img"), make([]byte, 2*statePiece))
	put(t, filepath.Join(from, "core-1.img"), []byte("core"))
	var whole []*piece
	want, err := NewSender(from, collect(&whole)).Rest()
	if err != nil || len(whole) != 3 {
		t.Fatalf("%d pieces, %v", len(whole), err)
	}
	for n := range whole {
		for _, within := range []bool{false, true} {
			var pieces []*piece
			if _, err := NewSender(from, cutAfter(n, within, &pieces)).Rest(); !errors.Is(err, errCut) {
				t.Errorf("piece %d, within %t: the source says %v", n, within, err)
			}
			receiver := NewReceiver(t.TempDir(), 1<<30)
			for _, p := range pieces {
				if err := receiver.Piece(p.name, &p.Buffer); err != nil {
					t.Fatal(err)
				}
			}
			if within {
				part := iotest.TimeoutReader(iotest.OneByteReader(bytes.NewReader(whole[n].Bytes())))
				if err := receiver.Piece(whole[n].name, part); !errors.Is(err, iotest.ErrTimeout) {
					t.Errorf("half of piece %d: the target says %v", n, err)
				}
			}
			if receiver.Check(want) == nil {
				t.Errorf("piece %d, within %t: the target takes it for all", n, within)
			}
		}
	}
}

// TestFollowEnds: also when the migration is given up, and when the directory is gone.
func TestFollowEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var pieces []*piece
	if err := NewSender(t.TempDir(), collect(&pieces)).Follow(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	gone := NewSender(filepath.Join(t.TempDir(), "gone"), collect(&pieces))
	if err := gone.Follow(t.Context(), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without its directory: %v", err)
	}
	if _, err := gone.Rest(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the rest without its directory: %v", err)
	}
}
