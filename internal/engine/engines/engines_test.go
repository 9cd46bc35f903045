package engines

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
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
		if found := parts(can); found != wanted[kind.Name] {
			t.Errorf("%s has the parts%s, want%s", kind.Name, found, wanted[kind.Name])
		}
	}
}

// wanted are the parts that engines have. A part that is missing by mistake shows nowhere else: a frozen copy
// would not be protected, for example.
var wanted = map[string]string{
	"docker":     shim + " LateStarter Watcher Sweeper Releaser",
	"podman":     shim + " LateStarter Sweeper Releaser",
	"containerd": shim + " LateStarter Sweeper Releaser",
	"lxc":        " Protector LeaveNoter",
}

// shim is what all engines with a runtime shim have.
const shim = " Images Networks Marker Restarter Protector Resumer LeaveNoter Leaver"

// parts names the parts that are not nil.
func parts(can engine.Capabilities) (names string) {
	value := reflect.ValueOf(can)
	for i := range value.NumField() {
		if field := value.Field(i); field.Kind() == reflect.Interface && !field.IsNil() {
			names += " " + value.Type().Field(i).Name
		}
	}
	return names
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
