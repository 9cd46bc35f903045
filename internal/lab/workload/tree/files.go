package tree

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
)

const (
	// perDirectory is the number of files in a directory.
	perDirectory = 1000
	// counterName is the file that counts writes, and newName a file that will replace another one.
	counterName = "counter"
	newName     = "new"
	// stride is the distance between two files that are written one after the other: any prime that does
	// not divide the number of files reaches all of them.
	stride, otherStride = 7919, 104729
	blockBytes          = 1 << 20
)

// tree is the files.
type tree struct {
	Config
	counter *os.File
	// written is the number of writes since the files were made. Write number n gives file order(n) its
	// content number n; before that, it has content number 0.
	written uint64
	flipped byte // number of changes of the byte in the middle of the first file, modulo 256
	block   []byte
	compare []byte
}

// open opens the existing files, or makes them.
func open(c Config) (*tree, error) {
	t := &tree{Config: c, block: make([]byte, min(c.Size, blockBytes)),
		compare: make([]byte, min(c.Size, blockBytes))}
	var err error
	t.counter, err = os.OpenFile(filepath.Join(c.Dir, counterName), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) && !c.Verify {
		return t, t.make()
	}
	if err != nil {
		return nil, err
	}
	var state [9]byte
	if _, err := t.counter.ReadAt(state[:], 0); err != nil {
		return nil, fmt.Errorf("%s: %w", counterName, err)
	}
	t.written, t.flipped = binary.BigEndian.Uint64(state[:]), state[8]
	return t, nil
}

// make makes all files, and finally the counter, which marks them as complete.
func (t *tree) make() error {
	for i := range t.Files {
		if i%perDirectory == 0 {
			if err := os.MkdirAll(filepath.Dir(t.path(i)), 0o755); err != nil {
				return err
			}
		}
		if err := t.write(t.path(i), os.O_CREATE|os.O_EXCL, i, 0); err != nil {
			return err
		}
	}
	var err error
	if t.counter, err = os.OpenFile(filepath.Join(t.Dir, counterName), os.O_CREATE|os.O_RDWR,
		0o644); err != nil {
		return err
	}
	return t.count()
}

// count records the last write.
func (t *tree) count() error {
	_, err := t.counter.WriteAt(append(binary.BigEndian.AppendUint64(nil, t.written), t.flipped), 0)
	return err
}

func (t *tree) path(file int) string {
	return filepath.Join(t.Dir, strconv.Itoa(file/perDirectory), strconv.Itoa(file%perDirectory))
}

// order returns the file of write number n.
func (t *tree) order(n uint64) int { return int(n * t.stride() % uint64(t.Files)) }

func (t *tree) stride() uint64 {
	if t.Files%stride == 0 {
		return otherStride
	}
	return stride
}

// contents returns the expected content numbers of all files.
func (t *tree) contents() []uint64 {
	contents := make([]uint64, t.Files)
	first := uint64(1)
	if t.written > uint64(t.Files) {
		first = t.written - uint64(t.Files) + 1
	}
	for n := first; n <= t.written; n++ {
		contents[t.order(n)] = n
	}
	return contents
}

// source generates a content that is incompressible and unique.
func source(file int, content uint64) io.Reader {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], uint64(file))
	binary.LittleEndian.PutUint64(seed[8:], content)
	return rand.NewChaCha8(seed)
}

// write writes a whole file.
func (t *tree) write(path string, flags, file int, content uint64) error {
	out, err := os.OpenFile(path, os.O_WRONLY|flags, 0o644)
	if err != nil {
		return err
	}
	from := source(file, content)
	for left := t.Size; left > 0 && err == nil; {
		block := t.block[:min(left, int64(len(t.block)))]
		if _, err = io.ReadFull(from, block); err == nil {
			_, err = out.Write(block)
		}
		left -= int64(len(block))
	}
	return errors.Join(err, out.Close())
}

// next rewrites the file whose turn it is.
func (t *tree) next() error {
	file, number := t.order(t.written+1), t.written+1
	path, to, flags := t.path(file), t.path(file), 0
	if t.Replace {
		to, flags = filepath.Join(filepath.Dir(path), newName), os.O_CREATE|os.O_TRUNC
	}
	if err := t.write(to, flags, file, number); err != nil {
		return err
	}
	if t.Replace {
		if err := os.Rename(to, path); err != nil {
			return err
		}
	}
	t.written = number
	return t.count()
}

// flip changes the byte in the middle of the first file.
func (t *tree) flip() error {
	file, err := os.OpenFile(t.path(0), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	var one [1]byte
	if _, err := file.ReadAt(one[:], t.Size/2); err != nil {
		return err
	}
	one[0]++
	if _, err := file.WriteAt(one[:], t.Size/2); err != nil {
		return err
	}
	t.flipped++
	return t.count()
}

// verify checks all files, and looks for unexpected files.
func (t *tree) verify() Result {
	result := Result{Files: t.Files, Written: t.written}
	for file, content := range t.contents() {
		if err := t.verifyFile(file, content); err != nil {
			result.bad(err)
		}
	}
	found := 0
	err := filepath.WalkDir(t.Dir, func(_ string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			found++
		}
		return err
	})
	if want := t.Files + 1; err != nil || found != want {
		result.bad(fmt.Errorf("there are %d files, want %d: %w", found, want, err))
	}
	return result
}

func (t *tree) verifyFile(file int, content uint64) error {
	in, err := os.Open(t.path(file))
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil || info.Size() != t.Size {
		return fmt.Errorf("file %d has %d bytes, want %d: %w", file, info.Size(), t.Size, err)
	}
	from := source(file, content)
	for at := int64(0); at < t.Size; at += int64(len(t.block)) {
		want, got := t.block[:min(t.Size-at, int64(len(t.block)))],
			t.compare[:min(t.Size-at, int64(len(t.block)))]
		if _, err := io.ReadFull(from, want); err != nil {
			return err
		}
		if middle := t.Size/2 - at; file == 0 && middle >= 0 && middle < int64(len(want)) {
			want[middle] += t.flipped
		}
		if _, err := io.ReadFull(in, got); err != nil || !bytes.Equal(got, want) {
			return fmt.Errorf("file %d, which must have content %d, is not right between %d and %d: %w",
				file, content, at, at+int64(len(want)), err)
		}
	}
	return nil
}
