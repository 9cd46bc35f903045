package image

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/files/parts"
)

func noise(seed byte, bytes int) string {
	content := make([]byte, bytes)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(content)
	return string(content)
}

func partsOf(t *testing.T, s *Store, diffID string) (list []parts.Part) {
	t.Helper()
	check(t, s.Parts(t.Context(), diffID, func(more []parts.Part) error {
		list = append(list, more...)
		return nil
	}))
	return list
}

// TestParts: a layer is listed and sent in parts, whatever the compression of its archive; the result is
// cached, and a damaged cache is ignored.
func TestParts(t *testing.T) {
	raw := pack(t, regular("big", noise(1, 3<<20)), regular("small", "x"))
	diffID := hashOf(t, raw).String()
	for name, archive := range map[string][]byte{"plain": raw, "gzip": gzipped(t, raw),
		"zstd": zstandard(t, raw)} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			check(t, s.ImportLayer(t.Context(), diffID, bytes.NewReader(archive)))
			list := partsOf(t, s, diffID)
			remembered := filepath.Join(s.layersDir(), strings.TrimPrefix(diffID, "sha256:"), partsName)
			for _, damage := range []string{"", "half of it", "\x00\x00\x00\x01"} {
				if damage != "" {
					check(t, os.WriteFile(remembered, []byte(damage), 0o600))
				}
				if again := partsOf(t, s, diffID); len(list) < 10 || !slices.Equal(again, list) {
					t.Errorf("%d parts, and then %d", len(list), len(again))
				}
			}
			var some, all bytes.Buffer
			check(t, s.ExportParts(t.Context(), diffID, list, []parts.Run{{First: 2, Count: 3}}, &some))
			begin := int(list[0].Length + list[1].Length)
			if want := raw[begin:][:int(list[2].Length+list[3].Length+list[4].Length)]; !bytes.Equal(
				some.Bytes(), want) {
				t.Errorf("%d bytes of three parts, want %d", some.Len(), len(want))
			}
			plain, err := s.OpenArchive(diffID)
			check(t, err)
			_, err = io.Copy(&all, plain)
			check(t, err)
			check(t, plain.Close())
			if !bytes.Equal(all.Bytes(), raw) {
				t.Error("the archive is another one")
			}
			if entries, err := os.ReadDir(filepath.Dir(remembered)); err != nil || len(entries) != 4 {
				t.Errorf("beside it are %v, %v", entries, err)
			}
		})
	}
}

// TestSimilar: candidates for an older version of a layer are images of the same name, then those on top of
// the same layer, then those of similar size.
func TestSimilar(t *testing.T) {
	s := open(t)
	bottom := pack(t, regular("bottom", "x"))
	layer := func(seed byte, bytes int) []byte { return pack(t, regular("file", noise(seed, bytes))) }
	first, second, unrelated := layer(1, 9000), layer(2, 5000), layer(3, 7000)
	load(t, s, dockerArchive(t, "localhost/web:1", bottom, first))
	load(t, s, dockerArchive(t, "localhost/api:1", bottom, second))
	load(t, s, dockerArchive(t, "localhost/other:1", unrelated))
	id := func(raw []byte) string { return hashOf(t, raw).String() }
	for name, test := range map[string]struct {
		names  []string
		layers [][]byte
		size   int64
		want   []string
	}{
		"another version, and one upon the same": {[]string{"localhost/web:2"},
			[][]byte{bottom, layer(4, 9100)}, 9100, []string{id(first), id(second)}},
		"with a port in the name": {[]string{"localhost:5000/web:2"}, [][]byte{layer(4, 90000)}, 90000, nil},
		"upon other layers": {[]string{"localhost/web"}, [][]byte{layer(4, 9100)},
			9100, []string{id(bottom), id(first)}},
		"by its size":  {nil, [][]byte{layer(4, 7001)}, int64(len(unrelated)) + 10, []string{id(unrelated)}},
		"like nothing": {nil, [][]byte{layer(4, 7001)}, 70000, nil},
	} {
		document := config(t, test.layers...)
		image := hashOf(t, document).String()
		check(t, s.ImportConfig(t.Context(), image, document))
		got := s.Similar(image, test.names, id(test.layers[len(test.layers)-1]), test.size)
		if slices.Sort(got); !sameSet(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
	if got := s.Similar(id(first), nil, id(first), 9000); got != nil {
		t.Errorf("of an image that is not here: %q", got)
	}
}

func sameSet(a, b []string) bool {
	slices.Sort(b)
	return slices.Equal(a, b)
}
