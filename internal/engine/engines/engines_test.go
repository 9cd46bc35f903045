package engines

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/engine"
)

// TestFacts: what an engine's row says is what the engine has, once it is open. Engines that are opened in
// another way, or are not on this machine, have the same check in their own tests.
func TestFacts(t *testing.T) {
	seen := map[string]bool{}
	for _, kind := range All() {
		if kind.Name == "" || kind.Title == "" || kind.Addresses == "" || kind.ImagesAt == "" ||
			seen[kind.Name] {
			t.Errorf("incomplete, or twice: %+v", kind.Facts)
		}
		seen[kind.Name] = true
		if kind.Open == nil {
			continue
		}
		one, err := kind.Open(engine.Config{StateDir: t.TempDir(), RunDir: t.TempDir()})
		if errors.Is(err, engine.ErrAway) {
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", kind.Name, err)
			continue
		}
		can := one.Capabilities()
		if err := can.Check(); err != nil {
			t.Error(err)
		}
		if can.Facts != kind.Facts || one.Name() != kind.Name {
			t.Errorf("%s: %+v, want %+v", one.Name(), can.Facts, kind.Facts)
		}
	}
}

// TestDocumentation: docs/engines.md has the table that "godwit ps --engines" prints.
func TestDocumentation(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "engines.md"))
	if err != nil {
		t.Fatal(err)
	}
	if table := engine.MarkdownTable(Facts()); !strings.Contains(string(page), "\n"+table+"\n") {
		t.Errorf("docs/engines.md lacks this table:\n%s", table)
	}
}
