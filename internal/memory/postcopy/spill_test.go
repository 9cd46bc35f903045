package postcopy

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/godwit/godwit/internal/memory"
)

const owner = "0123456789abcdef"

// spilled writes a spill, and returns its path and key.
func spilled(t testing.TB, maps []memory.TaskMap) (path string, key SpillKey) {
	t.Helper()
	key, err := NewSpillKey()
	must(t, err)
	path = filepath.Join(t.TempDir(), "spill")
	must(t, Spill(t.Context(), path, key, owner, maps, &frozen{}))
	return path, key
}

// TestSpill reads all pages of random maps back, one by one and several in parallel.
func TestSpill(t *testing.T) {
	for seed := range uint64(6) {
		random := rand.New(rand.NewPCG(seed, 9))
		maps := randomMaps(random, 3000)
		path, key := spilled(t, maps)
		s, err := OpenSpill(path, key, owner)
		must(t, err)
		size := memory.PageSize()
		for _, m := range maps {
			for _, a := range m.Areas {
				pages := min(int(a.Pages), 1+random.IntN(40))
				first := random.IntN(int(a.Pages) - pages + 1)
				address := a.Start + uint64(first*size)
				got, want := make([]byte, pages*size), make([]byte, pages*size)
				must(t, s.Read(m.Task, address, got))
				must(t, (&frozen{}).Read(m.Task, address, want))
				if !bytes.Equal(got, want) {
					t.Fatalf("seed %d: %d pages at %#x of task %d are others", seed, pages, address, m.Task)
				}
			}
		}
		if err := s.Read(memory.Task(1<<20), 0, make([]byte, size)); err == nil {
			t.Error("a page was read that is not there")
		}
		must(t, s.Close())
		status, err := os.Stat(path)
		must(t, err)
		if most := SpillBytes(int64(pagesOf(maps) * size)); status.Size() > most {
			t.Errorf("%d bytes, expected %d at most", status.Size(), most)
		}
		if _, err := os.Stat(SpillBegun(path)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("what was begun: %v", err)
		}
	}
}

// TestSpillShowsNothing looks for the content of pages in the file.
func TestSpillShowsNothing(t *testing.T) {
	maps := flat(64)
	path, _ := spilled(t, maps)
	data, err := os.ReadFile(path)
	must(t, err)
	page := make([]byte, memory.PageSize())
	must(t, (&frozen{}).Read(maps[0].Task, maps[0].Areas[0].Start, page))
	if bytes.Contains(data, page[:64]) || bytes.Contains(data, make([]byte, 64)) ||
		bytes.Contains(data, encodedMap(maps...)) {
		t.Error("the file shows what is in it")
	}
}

// TestSpillSalts: the same pages under the same key give a different file, because an interrupted writer
// begins again.
func TestSpillSalts(t *testing.T) {
	maps := flat(16)
	path, key := spilled(t, maps)
	before, err := os.ReadFile(path)
	must(t, err)
	must(t, Spill(t.Context(), path, key, owner, maps, &frozen{}))
	after, err := os.ReadFile(path)
	must(t, err)
	if bytes.Equal(before[sealedHeader:sealedHeader+64], after[sealedHeader:sealedHeader+64]) {
		t.Error("a nonce was used twice with one key")
	}
}

// TestSpillDamaged: nothing but the written pages is ever read.
func TestSpillDamaged(t *testing.T) {
	maps := flat(100)
	path, key := spilled(t, maps)
	whole, err := os.ReadFile(path)
	must(t, err)
	otherPath, _ := spilled(t, maps)
	other, err := os.ReadFile(otherPath)
	must(t, err)
	chunk := func(data []byte, n int) []byte {
		return data[sealedHeader+n*(chunkBytes+tagBytes):][:chunkBytes+tagBytes]
	}
	changed := func(change func(data []byte) []byte) []byte { return change(bytes.Clone(whole)) }
	for name, data := range map[string][]byte{
		"nothing":               {},
		"half a header":         whole[:sealedHeader/2],
		"only a header":         whole[:sealedHeader],
		"without the last byte": whole[:len(whole)-1],
		"without a chunk": changed(func(d []byte) []byte {
			return append(d[:sealedHeader], d[sealedHeader+chunkBytes+tagBytes:]...)
		}),
		"with a byte more":    append(bytes.Clone(whole), 0),
		"with another salt":   changed(func(d []byte) []byte { d[len(sealedMagic)] ^= 1; return d }),
		"with another length": changed(func(d []byte) []byte { d[sealedHeader-16] ^= 1; return d }),
		"with a flipped bit":  changed(func(d []byte) []byte { chunk(d, 2)[77] ^= 4; return d }),
		"with a flipped tag":  changed(func(d []byte) []byte { chunk(d, 0)[chunkBytes] ^= 4; return d }),
		"with a flipped end":  changed(func(d []byte) []byte { d[len(d)-tagBytes-1] ^= 4; return d }),
		"with chunks swapped": changed(func(d []byte) []byte {
			first := bytes.Clone(chunk(d, 0))
			copy(chunk(d, 0), chunk(d, 1))
			copy(chunk(d, 1), first)
			return d
		}),
		"with a chunk of another file": changed(func(d []byte) []byte {
			copy(chunk(d, 1), chunk(other, 1))
			return d
		}),
		"of another migration": other,
	} {
		must(t, os.WriteFile(path, data, 0o600))
		if read, err := readSpilled(path, key, owner, maps); !errors.Is(err, ErrSealed) {
			t.Errorf("%s: %d pages were read: %v", name, read, err)
		}
	}
	must(t, os.WriteFile(path, whole, 0o600))
	if _, err := readSpilled(path, SpillKey{1}, owner, maps); !errors.Is(err, ErrSealed) {
		t.Errorf("with another key: %v", err)
	}
	if _, err := readSpilled(path, key, "fedcba9876543210", maps); !errors.Is(err, ErrSealed) {
		t.Errorf("for another migration: %v", err)
	}
	if read, err := readSpilled(path, key, owner, maps); err != nil || read != 100 {
		t.Errorf("as it was: %d pages, %v", read, err)
	}
}

// readSpilled reads page by page until an error.
func readSpilled(path string, key SpillKey, owner string, maps []memory.TaskMap) (read int, err error) {
	s, err := OpenSpill(path, key, owner)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	for _, at := range spots(maps) {
		if err := s.Read(at.task, at.address, make([]byte, memory.PageSize())); err != nil {
			return read, err
		}
		read++
	}
	return read, nil
}

// TestSpillFails: nothing is left when the pages cannot be read, or are no longer needed.
func TestSpillFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "spill")
	broken := &frozen{}
	broken.fail.Store(true)
	if err := Spill(t.Context(), path, SpillKey{}, owner, flat(100), broken); err == nil {
		t.Error("pages that cannot be read were written")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Spill(ctx, path, SpillKey{}, owner, flat(100), &frozen{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	left, err := os.Stat(SpillBegun(path))
	must(t, err)
	if left.Size() > 0 || left.Sys().(*syscall.Stat_t).Blocks > 0 || left.Mode() != 0o600 {
		t.Errorf("%d bytes in %v are left", left.Size(), left.Mode())
	}
}

// TestSpillFailsAgain: a complete file stays if its replacement cannot be written.
func TestSpillFailsAgain(t *testing.T) {
	path, key := spilled(t, flat(100))
	broken := &frozen{}
	broken.fail.Store(true)
	if err := Spill(t.Context(), path, SpillKey{}, owner, flat(100), broken); err == nil {
		t.Fatal("pages that cannot be read were written")
	}
	s, err := OpenSpill(path, key, owner)
	must(t, err)
	must(t, s.Close())
}

// brokenDisk fails to read.
type brokenDisk struct{}

func (brokenDisk) ReadAt([]byte, int64) (int, error) { return 0, syscall.EIO }

// TestSpillDiskFails distinguishes a disk that cannot be read, and perhaps can later, from a damaged file.
func TestSpillDiskFails(t *testing.T) {
	err := (&Spilled{}).open(brokenDisk{}, 1<<20, SpillKey{}, owner)
	if !errors.Is(err, syscall.EIO) || errors.Is(err, ErrSealed) {
		t.Errorf("a disk that fails: %v", err)
	}
}

// TestServeFromSpill sends pages to a target from the disk alone, from a server that does not know which
// pages are missing.
func TestServeFromSpill(t *testing.T) {
	noLeaks(t)
	maps := randomMaps(rand.New(rand.NewPCG(1, 1)), 4000)
	path, key := spilled(t, maps)
	s, err := OpenSpill(path, key, owner)
	must(t, err)
	defer s.Close()
	box := newContainer(t, maps)
	server, err := NewServer(ServerConfig{Pages: s})
	must(t, err)
	client, err := NewClient(ClientConfig{Pages: box})
	must(t, err)
	source, target := both(t.Context(), server, client, link(t))
	must(t, source)
	must(t, target)
	if left := box.missing(); left != 0 {
		t.Errorf("%d pages are missing", left)
	}
}

// FuzzSpill: only the written file can be opened. That file and its key are always the same, so that the
// fuzzer's findings can be reproduced.
func FuzzSpill(f *testing.F) {
	key := SpillKey{1}
	whole, err := os.ReadFile("testdata/spill")
	must(f, err)
	if err := (&Spilled{}).open(bytes.NewReader(whole), int64(len(whole)), key, owner); err != nil {
		f.Fatalf("the file with pages of 4096 bytes cannot be opened: %v", err)
	}
	f.Add(whole)
	f.Add(whole[:sealedHeader])
	f.Add(append(bytes.Clone(whole[:sealedHeader]), make([]byte, 40)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		err := (&Spilled{}).open(bytes.NewReader(data), int64(len(data)), key, owner)
		if err == nil && !bytes.Equal(data, whole) {
			t.Error("something else was opened")
		} else if err != nil && !errors.Is(err, ErrSealed) {
			t.Error(err)
		}
	})
}
