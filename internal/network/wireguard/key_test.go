package wireguard

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestLoadKey checks that a node keeps its key, that only root can read the file, and that a file that is
// not a key is not replaced.
func TestLoadKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "wireguard.key")
	first, err := LoadKey(path)
	must(t, err)
	again, err := LoadKey(path)
	must(t, err)
	if first != again || first.IsZero() {
		t.Error("the key has changed")
	}
	info, err := os.Stat(path)
	must(t, err)
	if mode := info.Mode().Perm(); mode != 0o600 {
		t.Errorf("mode %o", mode)
	}
	must(t, os.WriteFile(path, []byte("x"), 0o600))
	if _, err := LoadKey(path); err == nil || !strings.Contains(err.Error(), "is not a WireGuard key") {
		t.Errorf("error %v", err)
	}
}

func TestParseKey(t *testing.T) {
	for _, raw := range [][]byte{nil, make([]byte, 31), make([]byte, 32), make([]byte, 33)} {
		if _, err := ParseKey(raw); err == nil {
			t.Errorf("%d bytes are taken for a key", len(raw))
		}
	}
	private, err := NewKey()
	must(t, err)
	public, err := private.Public()
	must(t, err)
	if parsed, err := ParseKey(public[:]); err != nil || parsed != public {
		t.Errorf("%v, %v", parsed, err)
	}
}

// TestProof checks that both nodes compute the same proof, that nobody else can, and that it holds for
// these two nodes only.
func TestProof(t *testing.T) {
	var private, public [3]Key
	for i := range private {
		var err error
		private[i], err = NewKey()
		must(t, err)
		public[i], err = private[i].Public()
		must(t, err)
	}
	proof := func(own, other int, from, to string) string {
		text, err := private[own].Proof(public[other], from, to)
		must(t, err)
		return string(text)
	}
	right := proof(0, 1, "a", "b")
	if right != proof(1, 0, "a", "b") || right == "" {
		t.Error("the other node computes another proof")
	}
	for _, wrong := range []string{
		proof(2, 1, "a", "b"), proof(0, 2, "a", "b"),
		proof(0, 1, "b", "a"), proof(0, 1, "c", "b"), proof(0, 1, "a", "c"),
	} {
		if wrong == right {
			t.Error("a proof fits something else")
		}
	}
	if _, err := private[0].Proof(Key{1}, "a", "b"); err == nil { // RFC 7748, section 6.1: the result is zero
		t.Error("there is a proof to a key of low order")
	}
}
