package attachment

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestNotesFailNothing: a damaged file is begun anew, and one that cannot be written is written later.
func TestNotesFailNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "later", "adoptions.json")
	n := &notes{path: path}
	n.note(adoption{Container: idOf("a")})
	if err := n.save(); err == nil || len(n.list()) != 1 {
		t.Errorf("no directory: %v, %v", err, n.list())
	}
	err := errors.Join(os.Mkdir(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("{"), 0o600))
	n = &notes{path: path}
	n.drop(idOf("a"))
	n.note(adoption{Container: idOf("a")})
	if err := errors.Join(err, n.save()); err != nil {
		t.Error(err)
	}
	if all := (&notes{path: path}).list(); len(all) != 1 {
		t.Errorf("%v", all)
	}
}
