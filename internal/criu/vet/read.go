package vet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// The magic numbers of images: criu/include/magic.h.
const (
	magicCommon    = 0x54564319
	magicInventory = 0x58313116
	magicPstree    = 0x50273030
	magicCore      = 0x55053847
	magicIDs       = 0x54432030
	magicMounts    = 0x55563928
	magicUserns    = 0x55474906
	magicSeccomp   = 0x64413049
	magicFiles     = 0x56303138
	magicGhost     = 0x52583605
	magicNetns     = 0x55933752
	magicApparmor  = 0x59423047
)

// maxImage bounds the size of an image. The longest ones describe open files, with some 200 bytes each, or
// mappings.
const maxImage = 256 << 20

// errFormat means that a file is not an image, or not as CRIU writes one.
var errFormat = errors.New("it is not as CRIU writes it")

// imageDir is a directory of images.
type imageDir struct {
	path  string
	names map[string]bool
}

func openDir(path string) (*imageDir, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	d := &imageDir{path: path, names: make(map[string]bool, len(entries))}
	for _, entry := range entries {
		d.names[entry.Name()] = true
	}
	return d, nil
}

// read reads a whole image. A missing image is fs.ErrNotExist.
func (d *imageDir) read(name string) ([]byte, error) {
	if !d.names[name] {
		return nil, fs.ErrNotExist
	}
	path := filepath.Join(d.path, name)
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxImage {
		return nil, fmt.Errorf("%w: it is a %v of %d bytes", errFormat, info.Mode().Type(), info.Size())
	}
	return os.ReadFile(path)
}

// each calls do for the entries of an image. A missing image has none.
func (d *imageDir) each(name string, magic uint32, do func(entry []byte) error) error {
	data, err := d.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = entries(data, magic, do)
	}
	if err != nil {
		return inImage(name, err)
	}
	return nil
}

// one reads the only entry of an image, and reports whether the image exists.
func (d *imageDir) one(name string, magic uint32, into proto.Message) (bool, error) {
	count := 0
	err := d.each(name, magic, func(entry []byte) error {
		count++
		if count > 1 {
			return fmt.Errorf("%w: it has more than one entry", errFormat)
		}
		return decode(entry, into)
	})
	if err == nil && count == 0 && d.names[name] {
		err = inImage(name, fmt.Errorf("%w: it has no entry", errFormat))
	}
	return count > 0, err
}

// inImage adds the name of the image to an error.
func inImage(name string, err error) error { return fmt.Errorf("image %s: %w", name, err) }

// entries calls do for each entry, and keeps no entry.
func entries(data []byte, magic uint32, do func(entry []byte) error) error {
	if len(data) < 8 || binary.LittleEndian.Uint32(data) != magicCommon ||
		binary.LittleEndian.Uint32(data[4:]) != magic {
		return fmt.Errorf("%w: it begins with %x", errFormat, data[:min(len(data), 8)])
	}
	for rest := data[8:]; len(rest) > 0; {
		if len(rest) < 4 {
			return fmt.Errorf("%w: it ends within an entry", errFormat)
		}
		size := uint64(binary.LittleEndian.Uint32(rest))
		if size > uint64(len(rest)-4) {
			return fmt.Errorf("%w: it ends within an entry", errFormat)
		}
		if err := do(rest[4 : 4+size]); err != nil {
			return err
		}
		rest = rest[4+size:]
	}
	return nil
}

// decode reads one message. Two readers of the same bytes must not get different results. So a singular
// field may occur only once, and no encoding may be longer than necessary, as in what CRIU writes. CRIU
// itself notices missing fields.
func decode(entry []byte, into proto.Message) error {
	if err := (proto.UnmarshalOptions{AllowPartial: true}).Unmarshal(entry, into); err != nil {
		return fmt.Errorf("%w: %w", errFormat, err)
	}
	if size := proto.Size(into); size != len(entry) {
		return fmt.Errorf("%w: an entry of %d bytes needs %d", errFormat, len(entry), size)
	}
	return nil
}

// pick keeps the wanted fields of a message. The other fields may be long, and nothing reads them. A wanted
// field that occurs twice is refused.
func pick(entry []byte, wanted ...protowire.Number) ([]byte, error) {
	var out []byte
	seen := make(map[protowire.Number]bool, len(wanted))
	for rest := entry; len(rest) > 0; {
		number, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return nil, fmt.Errorf("%w: %w", errFormat, protowire.ParseError(n))
		}
		size := protowire.ConsumeFieldValue(number, kind, rest[n:])
		if size < 0 {
			return nil, fmt.Errorf("%w: %w", errFormat, protowire.ParseError(size))
		}
		for _, w := range wanted {
			if w != number {
				continue
			}
			if seen[number] {
				return nil, fmt.Errorf("%w: field %d comes twice", errFormat, number)
			}
			seen[number] = true
			out = append(out, rest[:n+size]...)
		}
		rest = rest[n+size:]
	}
	return out, nil
}
