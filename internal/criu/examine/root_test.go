package examine

import (
	"os"
	"path/filepath"
	"testing"
)

func TestPlaceOfRoot(t *testing.T) {
	with, without := t.TempDir(), t.TempDir()
	if err := os.Mkdir(filepath.Join(with, "tmp"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, one := range []struct {
		flags, root string
		refused     bool
	}{{"ro,relatime", without, true}, {"rw,relatime", without, false}, {"ro,relatime", with, false},
		{"relatime,ro", without, true}, {"rw,nosuid,errors=ro", without, false}} {
		if found := placeOfRoot(one.flags, one.root); len(found) > 0 != one.refused {
			t.Errorf("%s, %s: %+v", one.flags, one.root, found)
		}
	}
}
