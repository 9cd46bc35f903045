package lxc

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/godwit/godwit/internal/durable"
)

// TestGarbageCollection: the record of a container is dropped once LXC no longer has it, unless it moves.
func TestGarbageCollection(t *testing.T) {
	directory := t.TempDir()
	e := assemble(Config{StateDir: filepath.Join(directory, "state"),
		RunDir: filepath.Join(directory, "run"), Path: filepath.Join(directory, "lxc")})
	p := e.place(someID, "web")
	makes := func() {
		t.Helper()
		for _, path := range []string{p.lxc, p.state, p.run} {
			if err := os.MkdirAll(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	remembered := func(want bool) {
		t.Helper()
		if _, err := e.List(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{p.state, p.run} {
			if is := durable.Exists(path); is != want {
				t.Errorf("%s: there: %t, want %t", path, is, want)
			}
		}
	}
	makes()
	if err := durable.Save(p.own(), ownRecord{ID: someID, Name: "web"}); err != nil {
		t.Fatal(err)
	}
	remembered(true)
	if err := os.RemoveAll(p.lxc); err != nil {
		t.Fatal(err)
	}
	for _, record := range []string{p.arrival(), p.departure()} {
		if err := durable.Save(record, struct{}{}); err != nil {
			t.Fatal(err)
		}
		remembered(true)
		if err := durable.Remove(record); err != nil {
			t.Fatal(err)
		}
	}
	unlock := e.lock(someID)
	remembered(true)
	unlock()
	remembered(false)
}
