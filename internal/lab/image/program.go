package image

import (
	"archive/tar"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// ProgramPath is the path of the program in an image made by OfProgram.
const ProgramPath = "/program"

// OfProgram makes an image that contains only a program, which must be statically linked, and writes it to
// a new file in a directory, like Build. The image is not cached: programs change more often than packages.
// For each size in bulk the image has an additional layer, with incompressible files of this total size.
func OfProgram(name, program, dir string, bulk ...int64) (string, error) {
	if err := checkStatic(program); err != nil {
		return "", fmt.Errorf("image of %s: %w", program, err)
	}
	fail := func(err error) (string, error) { return "", fmt.Errorf("image of %s: %w", program, err) }
	recipe := layerRecipe{Dirs: map[string]int64{"dev": 0o755, "etc": 0o755, "proc": 0o755, "sys": 0o755,
		"tmp": 0o1777}}
	lowest, err := hashLayer(filepath.Join(dir, name+"-layer.tar"), func(out io.Writer) error {
		return writeProgramLayer(out, recipe, program)
	})
	defer os.Remove(lowest.path)
	if err != nil {
		return fail(err)
	}
	layers := []layer{lowest}
	for number, size := range bulk {
		more, err := hashLayer(filepath.Join(dir, fmt.Sprintf("%s-bulk-%d.tar", name, number)),
			func(out io.Writer) error {
				return writeBulkLayer(out, number, size)
			})
		defer os.Remove(more.path)
		if err != nil {
			return fail(err)
		}
		layers = append(layers, more)
	}
	path := filepath.Join(dir, name+".tar")
	// One working thread of Go: with fewer threads, the program resembles programs in other languages more.
	run := config{Env: []string{"PATH=/", "GOMAXPROCS=1"}, Cmd: []string{ProgramPath}}
	if err := replace(path,
		func(file *os.File) error { return writeArchive(file, name, run, layers) }); err != nil {
		return fail(err)
	}
	return path, nil
}

// bulkFileBytes is the size of a file in a layer that consists of bulk.
const bulkFileBytes = 1 << 20

// writeBulkLayer writes a layer that is unique to its number.
func writeBulkLayer(out io.Writer, number int, size int64) error {
	w := &layerWriter{Writer: tar.NewWriter(out), seen: make(map[string]bool)}
	return errors.Join(w.bulk(number, size), w.Close())
}

// bulk writes files into a directory of their own.
func (w *layerWriter) bulk(number int, size int64) error {
	dir := fmt.Sprintf("bulk-%d", number)
	if err := w.own(layerRecipe{Dirs: map[string]int64{dir: 0o755}}); err != nil {
		return err
	}
	noise := rand.NewChaCha8([32]byte{byte(number), byte(number >> 8)})
	for file := 0; size > 0; file++ {
		part := min(size, bulkFileBytes)
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: fmt.Sprintf("%s/%d", dir, file), Mode: 0o644, Size: part,
			ModTime: madeAt(),
		}
		if err := w.entry(header, io.LimitReader(noise, part)); err != nil {
			return err
		}
		size -= part
	}
	return nil
}

func writeProgramLayer(out io.Writer, recipe layerRecipe, program string) error {
	file, err := os.Open(program)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	w := &layerWriter{Writer: tar.NewWriter(out), seen: make(map[string]bool)}
	if err := w.own(recipe); err != nil {
		return err
	}
	header := &tar.Header{Typeflag: tar.TypeReg, Name: ProgramPath[1:], Mode: 0o755, Size: info.Size(),
		ModTime: madeAt()}
	if err := w.entry(header, file); err != nil {
		return err
	}
	return w.Close()
}

// checkStatic refuses a program that needs a dynamic linker, which the image lacks. Running it would only
// report "No such file".
func checkStatic(program string) error {
	file, err := elf.Open(program)
	if err != nil {
		return err
	}
	defer file.Close()
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP {
			return errors.New("it is linked dynamically; build it with CGO_ENABLED=0")
		}
	}
	return nil
}
