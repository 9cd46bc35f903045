package agent

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type piece struct {
	name string
	bytes.Buffer
}

func (p *piece) Close() error { return nil }

func collect(pieces *[]*piece) sectionWriter {
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
	sender := newStateSender(from, collect(&pieces))
	put(t, pages, large[:100])
	if err := sender.pass(nil, func(name string) bool { return strings.HasPrefix(name, "pages-") }); err != nil {
		t.Fatal(err)
	}
	put(t, pages, large)
	put(t, filepath.Join(from, "core-1.img"), []byte("core"))
	put(t, filepath.Join(from, "empty.img"), nil)
	sent, err := sender.rest()
	if err != nil {
		t.Fatal(err)
	}
	receiver := newStateReceiver(to, int64(len(large)+4))
	for _, p := range pieces {
		if err := receiver.piece(p.name, &p.Buffer); err != nil {
			t.Fatal(err)
		}
	}
	if err := receiver.check(sent); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(to, "pages-1.img"))
	if err != nil || !bytes.Equal(got, large) {
		t.Fatalf("pages-1.img differs after the way, error %v", err)
	}
	delete(sent, "core-1.img")
	if receiver.check(sent) == nil {
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
	sender := newStateSender(dir, func(name string) (io.WriteCloser, error) {
		if len(pieces) == 0 {
			close(complete) // while the first piece leaves
		}
		return collect(&pieces)(name)
	})
	if err := sender.follow(t.Context(), complete); err != nil {
		t.Fatal(err)
	}
	if len(pieces) != 1 {
		t.Errorf("%d pieces were sent before follow noticed", len(pieces))
	}
	if sent, err := sender.rest(); err != nil || sent["pages-1.img"] != 4*statePiece || len(pieces) != 4 {
		t.Errorf("then %d pieces, %v, error %v", len(pieces), sent, err)
	}
}

func TestStateReceiverRefuses(t *testing.T) {
	for _, section := range []string{
		"", "pages", "../x@0", "a/b@0", ".hidden@0", "a@-1", "a@x", "a@1", "a@9223372036854775808", strings.Repeat("a", 200) + "@0",
	} {
		dir := t.TempDir()
		if err := newStateReceiver(dir, 100).piece(section, strings.NewReader("x")); err == nil {
			t.Errorf("section %.40q was accepted", section)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("section %.40q left %v, error %v", section, entries, err)
		}
	}
	if err := newStateReceiver(t.TempDir(), 10).piece("a@0", strings.NewReader(strings.Repeat("x", 11))); err == nil {
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
		_ = newStateReceiver(dir, 64).piece(section, bytes.NewReader(content)) // Any error is right; an escape is not.
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
