package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// spooled stores a layer from in, of at most most bytes.
func spooled(t *testing.T, s *Spool, diffID string, in io.Reader, most int64) error {
	t.Helper()
	release, ok := s.Claim(diffID)
	if !ok {
		t.Fatal("somebody else brings it, or it is here")
	}
	defer release()
	return s.BringLayer(t.Context(), diffID, in, most)
}

// lost ends like a lost connection.
func lost(raw []byte) io.Reader {
	return io.MultiReader(bytes.NewReader(raw),
		readerFunc(func([]byte) (int, error) { return 0, errors.New("connection reset") }))
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	check(t, err)
	for _, entry := range entries {
		all = append(all, entry.Name())
	}
	return all
}

// TestSpool: the received part of a layer stays when the connection is lost, and content of another layer
// does not.
func TestSpool(t *testing.T) {
	dir := t.TempDir()
	s, err := OpenSpool(dir)
	check(t, err)
	raw := pack(t, regular("file", strings.Repeat("content ", 1<<16)))
	diffID := digestOf(raw)
	for i, end := range []int{len(raw) / 2, len(raw) / 3} { // a shorter part than the stored one is useless
		if err := spooled(t, s, diffID, lost(raw[:end]), int64(len(raw))); err == nil {
			t.Fatalf("%d: it came", i)
		}
		begun := s.Begun(diffID)
		if size, err := s.Size(begun); err != nil || size != int64(len(raw)/2) || s.HasLayer(diffID) {
			t.Errorf("%d: %d of %d bytes are here (%v), whole: %v", i, size, len(raw), err,
				s.HasLayer(diffID))
		}
	}
	for what, bad := range map[string][]byte{"another": pack(t, regular("file", "other")),
		"longer": append(bytes.Clone(raw), 0), "shorter": raw[:1000]} {
		if err := spooled(t, s, diffID, bytes.NewReader(bad), int64(len(raw))); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	check(t, spooled(t, s, diffID, bytes.NewReader(zstandard(t, raw)), int64(len(raw))))
	if got := names(t, dir); len(got) != 1 || !s.HasLayer(diffID) || s.Begun(diffID) != "" {
		t.Errorf("here: %v, %q", got, s.Begun(diffID))
	}
	archive, err := s.OpenArchive(diffID)
	check(t, err)
	defer archive.Close()
	if got, err := io.ReadAll(archive); err != nil || !bytes.Equal(got, raw) {
		t.Errorf("%d bytes, %v; want %d", len(got), err, len(raw))
	}
	check(t, s.Remove([]string{diffID, diffID}))
	if got := names(t, dir); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
}

// TestSpoolHostile: an engine gets nothing that this node would not unpack itself, whatever its digest is.
func TestSpoolHostile(t *testing.T) {
	dir := t.TempDir()
	s, err := OpenSpool(dir)
	check(t, err)
	overlay, sparse := regular("x", ""), regular("x", "")
	overlay.PAXRecords = map[string]string{"SCHILY.xattr.trusted.overlay.redirect": "/etc"}
	sparse.Typeflag = tar.TypeGNUSparse
	for what, raw := range map[string][]byte{
		"parent":            pack(t, regular("../escaped", "x")),
		"absolute":          pack(t, regular("/tmp/escaped", "x")),
		"through a link":    pack(t, link(tar.TypeSymlink, "l", "/tmp"), regular("l/escaped", "x")),
		"hard link":         pack(t, link(tar.TypeLink, "l", "../../etc/shadow")),
		"overlay attribute": pack(t, overlay),
		"sparse":            pack(t, sparse),
		"compressed twice":  zstandard(t, zstandard(t, base(t))),
		"no archive":        bytes.Repeat([]byte("x"), 4096),
	} {
		diffID := digestOf(raw)
		if what == "compressed twice" {
			diffID = digestOf(zstandard(t, base(t)))
		}
		if err := spooled(t, s, diffID, bytes.NewReader(raw), 1<<20); !errors.Is(err, ErrInvalid) ||
			s.HasLayer(diffID) {
			t.Errorf("%s: %v; here: %v", what, err, s.HasLayer(diffID))
		}
	}
	if got := names(t, dir); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
}

// TestEndlessCompressed: an archive that never grows when unpacked is neither stored nor read without end.
func TestEndlessCompressed(t *testing.T) {
	s, err := OpenSpool(t.TempDir())
	check(t, err)
	raw := base(t)
	// a frame of zstd without content
	skipped := append([]byte{0x50, 0x2a, 0x4d, 0x18, 0, 0, 1, 0}, make([]byte, 1<<16)...)
	for what, bring := range map[string]func(string, io.Reader) error{
		"spool": func(diffID string, in io.Reader) error {
			return spooled(t, s, diffID, in,
				int64(len(raw)))
		},
		"store": func(diffID string, in io.Reader) error {
			return open(t).BringLayer(t.Context(), diffID, in, int64(len(raw)))
		},
	} {
		more, sent := bytes.NewReader(nil), 0
		in := io.MultiReader(bytes.NewReader(zstandard(t, raw)), readerFunc(func(p []byte) (int, error) {
			if more.Len() == 0 {
				more.Reset(skipped)
			}
			n, err := more.Read(p)
			if sent += n; sent > 64<<20 {
				return 0, errors.New("no end")
			}
			return n, err
		}))
		if err := bring(digestOf(raw), in); !errors.Is(err, ErrInvalid) || sent > 8<<20 {
			t.Errorf("%s: %v, %d bytes read", what, err, sent)
		}
	}
}

// TestSpoolBlob: an engine's stored form of a layer is kept unchanged; a damaged one, or one in which no
// honest layer is packed, is refused.
func TestSpoolBlob(t *testing.T) {
	s, err := OpenSpool(t.TempDir())
	check(t, err)
	raw := zstandard(t, base(t))
	check(t, s.BringBlob(t.Context(), digestOf(raw), bytes.NewReader(raw), int64(len(raw))))
	archive, err := s.OpenArchive(digestOf(raw))
	check(t, err)
	defer archive.Close()
	if kept, err := io.ReadAll(archive); err != nil || !bytes.Equal(kept, raw) {
		t.Errorf("%d bytes of %d, %v", len(kept), len(raw), err)
	}
	coming, err := OpenLayers([]string{digestOf(raw)}, func(digest string) (io.ReadCloser, int64, error) {
		archive, err := s.OpenArchive(digest)
		return archive, int64(len(raw)), err
	})
	check(t, err)
	defer coming.Close()
	if coming.Bytes() != int64(len(raw)) || coming.Unpacked() != int64(len(base(t))) ||
		coming.Unpacked() <= coming.Bytes() {
		t.Errorf("%d bytes, unpacked %d; want %d, %d", coming.Bytes(), coming.Unpacked(), len(raw),
			len(base(t)))
	}
	text := []byte("no archive")
	for what, c := range map[string]struct {
		content []byte
		digest  string
		most    int
	}{
		"another":     {raw, digestOf(text), len(raw)},
		"larger":      {raw, digestOf(raw[1:]), len(raw) - 1},
		"cut":         {raw[:len(raw)-1], digestOf(raw[:len(raw)-1]), len(raw)},
		"no archive":  {bytes.Repeat(text, 100), digestOf(bytes.Repeat(text, 100)), 1000},
		"its archive": {raw, digestOf(base(t)), len(raw)},
	} {
		if err := s.BringBlob(t.Context(), c.digest, bytes.NewReader(c.content),
			int64(c.most)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestSpoolHostileNames: nothing outside of the spool can be named.
func TestSpoolHostileNames(t *testing.T) {
	outer := t.TempDir()
	s, err := OpenSpool(filepath.Join(outer, "spool"))
	check(t, err)
	check(t, os.WriteFile(filepath.Join(outer, "x.tar"), []byte("secret"), 0o600))
	for _, name := range []string{"../x", "sha256:../x", "../x.part", ""} {
		if _, err := s.OpenArchive(name); err == nil {
			t.Errorf("%q was opened", name)
		}
		if s.HasLayer(name) || s.Remove([]string{name}) == nil ||
			s.BringLayer(t.Context(), name, bytes.NewReader(nil), 1) == nil {
			t.Errorf("%q is taken for a layer", name)
		}
	}
}

// TestSpoolSweep: unused layers are removed, and so are unfinished ones.
func TestSpoolSweep(t *testing.T) {
	dir := t.TempDir()
	s, err := OpenSpool(dir)
	check(t, err)
	raw := base(t)
	check(t, spooled(t, s, digestOf(raw), bytes.NewReader(raw), 0))
	check(t, s.Sweep())
	if !s.HasLayer(digestOf(raw)) {
		t.Error("what has just come is gone")
	}
	check(t, os.WriteFile(filepath.Join(dir, temporary+"1"), nil, 0o600))
	old := time.Now().Add(-spoolFor - time.Minute)
	check(t, os.Chtimes(s.path(digestOf(raw), wholeSuffix), old, old))
	s, err = OpenSpool(dir)
	check(t, err)
	check(t, s.Sweep())
	if got := names(t, dir); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
}
