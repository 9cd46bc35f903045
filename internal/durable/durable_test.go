package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record.json")
	var read struct{ Name string }
	if err := Load(path, &read); !errors.Is(err, fs.ErrNotExist) || Exists(path) {
		t.Errorf("no record: %v", err)
	}
	if err := Remove(path); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"first", "second"} {
		if err := errors.Join(Save(path, struct{ Name string }{name}), Load(path, &read)); err != nil ||
			read.Name != name {
			t.Errorf("%s was saved, %s read: %v", name, read.Name, err)
		}
	}
	for _, bad := range []string{"", "{", string(make([]byte, maxBytes+1))} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Load(path, &read); err == nil {
			t.Errorf("%d bytes that are no record are read", len(bad))
		}
	}
	if err := Remove(path); err != nil || Exists(path) {
		t.Errorf("not removed: %v", err)
	}
}

// TestLoadEach: an unreadable file hides none of the others, and is reported.
func TestLoadEach(t *testing.T) {
	within := filepath.Join(t.TempDir(), "all")
	type record struct{ Name string }
	if all, err := LoadEach[record](within, "record.json"); err != nil || len(all) > 0 {
		t.Errorf("%v, %v of a directory that is missing", all, err)
	}
	for name, content := range map[string]string{"a": "{", "b": `{"Name":"second"}`, "c": ""} {
		directory := filepath.Join(within, name)
		err := os.MkdirAll(directory, 0o700)
		if err == nil && content != "" {
			err = os.WriteFile(filepath.Join(directory, "record.json"), []byte(content), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if all, err := LoadEach[record](within, "record.json"); err == nil || len(all) != 1 ||
		all[0].Name != "second" {
		t.Errorf("%v, %v", all, err)
	}
}
