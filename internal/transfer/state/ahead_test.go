package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/regular"
	"github.com/godwit/godwit/internal/memory"
)

// treesOf are layers in a directory.
type treesOf string

func (d treesOf) LayerPath(diffID string) (string, error) {
	return filepath.Join(string(d), diffID), nil
}

// layersIn makes the files of two layers.
func layersIn(t testing.TB, content []byte) Layers {
	dir := t.TempDir()
	for _, layer := range []string{"lower", "upper"} {
		if err := os.MkdirAll(filepath.Join(dir, layer, "lib"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, content := range map[string][]byte{
		"lower/lib/one.so": content, "lower/lib/two.so": []byte("replaced"),
		"upper/lib/two.so": content[:len(content)-100],
		"outside.so":       content,
	} {
		if err := os.WriteFile(filepath.Join(dir, path), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	err := errors.Join(os.Symlink("one.so", filepath.Join(dir, "lower/lib/link.so")),
		os.Symlink("/", filepath.Join(dir, "lower/root")),
		unix.Mkfifo(filepath.Join(dir, "upper/lib/fifo.so"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return Layers{treesOf(dir), []string{"lower", "upper"}}
}

// relocated is a page of which some words have changed.
func relocated(page []byte) []byte {
	now := bytes.Clone(page)
	for at := 0; at < len(now); at += 256 {
		binary.LittleEndian.PutUint64(now[at:], 0x7f0011223344)
	}
	return now
}

// TestPagesOfTheImage sends pages ahead that differ a little from those of the image's files.
func TestPagesOfTheImage(t *testing.T) {
	size := memory.PageSize()
	content := make([]byte, 4*size)
	for i := range content {
		content[i] = byte(i*i>>7 ^ i)
	}
	layers := layersIn(t, content)
	page := func(n int) []byte { return content[n*size : (n+1)*size] }
	last := append(bytes.Clone(page(3)[:size-100]), make([]byte, 100)...)
	known := NewKnown(layers)
	defer known.Release()
	literals := 0
	for _, one := range []struct {
		file    string
		number  int
		content []byte
		delta   bool
	}{
		{"/lib/one.so", 0, relocated(page(0)), true},
		{"/lib/one.so", 2, relocated(page(2)), true},
		{"/lib/two.so", 3, relocated(last), true}, // of the upper layer, whose file ends within it
		{"/lib/two.so", 3, last, true},            // written, and as it was
		{"/lib/one.so", 1, pageOf(0xa5), false},   // nothing of it is the same
		{"/lib/one.so", 9, relocated(page(1)), false},
		{"/lib/none.so", 0, relocated(page(3)), false},
		{"/lib/one.so (deleted)", 0, pageOf(1), false},
		{"/lib/fifo.so", 0, pageOf(2), false},
		{"/lib/link.so", 0, pageOf(3), false},
		{"/../outside.so", 0, pageOf(4), false},
		{"/lib", 0, pageOf(5), false},
		{"", 0, pageOf(6), false},
	} {
		before := len(known.ahead.encoded)
		if !known.Add(memory.FilePage{Content: one.content, File: one.file,
			Offset: uint64(one.number * size)}) {
			t.Fatal("there is no room")
		}
		if took := len(known.ahead.encoded) - before; (took < size/2) != one.delta {
			t.Errorf("page %d of %q took %d bytes", one.number, one.file, took)
		}
		if !one.delta {
			literals++
		}
	}
	all := known.All()
	if most := literals*(size+1) + size; len(all) > most {
		t.Errorf("%d bytes leave for %d of content, at most %d should", len(all), len(known.content), most)
	}
	got, err := ReceiveKnown(bytes.NewReader(all), layers)
	if err != nil || !bytes.Equal(got, known.content) {
		t.Fatalf("%d bytes came of %d, %v", len(got), len(known.content), err)
	}
	for i := 0; i < len(all); i += 97 {
		if _, err := ReceiveKnown(bytes.NewReader(all[:i]), layers); err == nil {
			t.Fatalf("%d bytes of %d were enough", i, len(all))
		}
	}
	if _, err := ReceiveKnown(bytes.NewReader(append(bytes.Clone(all), 0)), layers); err == nil {
		t.Error("more was taken than there is")
	}
	// The same layer, and yet not the same.
	damaged := layersIn(t, bytes.Repeat([]byte{7}, len(content)))
	if _, err := ReceiveKnown(bytes.NewReader(all), damaged); !errors.Is(err, ErrLacking) {
		t.Errorf("a damaged layer: %v", err)
	}
	if _, err := ReceiveKnown(bytes.NewReader(all), Layers{}); !errors.Is(err, errNoFile) ||
		!errors.Is(err, ErrLacking) {
		t.Errorf("no layer: %v", err)
	}
	short := layersIn(t, content[:size+1])
	if _, err := ReceiveKnown(bytes.NewReader(all), short); !errors.Is(err, ErrLacking) {
		t.Errorf("a file that is cut: %v", err)
	}
}

// TestPagesOfOtherFiles refuses what a peer may not have opened.
func TestPagesOfOtherFiles(t *testing.T) {
	layers := layersIn(t, make([]byte, 2*memory.PageSize()))
	for _, path := range []string{"../outside.so", "/etc/passwd", "root/etc/passwd", "lib/link.so",
		"lib/fifo.so", "lib", "", "lib/../../outside.so"} {
		for layer := range uint64(3) {
			if file, err := layers.open(layer, path); err == nil {
				_ = file.Close()
				t.Errorf("%q in layer %d was opened", path, layer)
			}
		}
	}
	if _, err := layers.open(1<<63, "lib/one.so"); !errors.Is(err, errNoFile) {
		t.Errorf("a layer that there is not: %v", err)
	}
}

// TestDevicesStayClosed: a device that an image has is not opened, which may do what it is for.
func TestDevicesStayClosed(t *testing.T) {
	layers := layersIn(t, make([]byte, memory.PageSize()))
	dir, err := layers.store.LayerPath("upper")
	if err != nil {
		t.Fatal(err)
	}
	const nobodys = 4095 // no driver has this number: to open it is ENXIO
	if err := unix.Mknod(filepath.Join(dir, "lib/watchdog"), unix.S_IFCHR|0o600,
		int(unix.Mkdev(nobodys, 130))); err != nil {
		t.Fatal(err)
	}
	if _, err := layers.open(1, "lib/watchdog"); !errors.Is(err, regular.ErrOther) {
		t.Errorf("got %v", err)
	}
}

// FuzzAhead: whatever comes, no more is made of it than is kept.
func FuzzAhead(f *testing.F) {
	content := make([]byte, 2*memory.PageSize())
	layers := layersIn(f, content)
	known := NewKnown(layers)
	for n := range 2 {
		known.Add(memory.FilePage{Content: relocated(content[:memory.PageSize()]), File: "/lib/one.so",
			Offset: uint64(n * memory.PageSize())})
		known.Add(filePage(pageOf(byte(n + 1))))
	}
	f.Add(known.All())
	known.Release()
	f.Add([]byte{1, 0, 10, 'l', 'i', 'b', '/', 'o', 'n', 'e', '.', 's', 'o', 0, 0})
	f.Add(binary.AppendUvarint(nil, noMore))
	f.Fuzz(func(t *testing.T, section []byte) {
		got, err := ReceiveKnown(bytes.NewReader(section), layers)
		if err == nil && (len(got) > mostKnown || len(got)%memory.PageSize() != 0) {
			t.Errorf("%d bytes", len(got))
		}
	})
}
