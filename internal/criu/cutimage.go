package criu

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/encoding/protowire"
)

const (
	imageMemory = 0x57492820 // MM_MAGIC of criu/include/magic.h

	fieldMapping = 14 // vmas of mm_entry (images/mm.proto)
	fieldStart   = 1  // of vma_entry (images/vma.proto)
	fieldEnd     = 2

	// a mapping takes some 60 bytes, and a process has at most vm.max_map_count of them, usually 65530
	maxMemoryImage = 64 << 20
)

// mendMappings corrects the ends of mappings that were cut, in the image of one process.
func mendMappings(imagesDir string, pid int, cut []PageRange, pageSize uint64) error {
	if len(cut) == 0 {
		return nil
	}
	path := filepath.Join(imagesDir, fmt.Sprintf("mm-%d.img", pid))
	image, err := readBounded(path, maxMemoryImage)
	if err == nil {
		image, err = mendMemoryImage(image, cut, pageSize)
	}
	if err == nil {
		err = os.WriteFile(path, image, 0o600)
	}
	if err != nil {
		return fmt.Errorf("correct the mappings of process %d in its image: %w", pid, err)
	}
	return nil
}

func readBounded(path string, most int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > most {
		return nil, fmt.Errorf("%w: %s has %d bytes", errImage, filepath.Base(path), info.Size())
	}
	return os.ReadFile(path)
}

// mendMemoryImage returns an image in which each of the cut mappings, each exactly once, is whole again.
func mendMemoryImage(image []byte, cut []PageRange, pageSize uint64) ([]byte, error) {
	const head = 12 // two magic numbers and the length
	if len(image) < head || binary.LittleEndian.Uint32(image) != imageCommon ||
		binary.LittleEndian.Uint32(image[4:]) != imageMemory ||
		uint64(binary.LittleEndian.Uint32(image[8:])) != uint64(len(image)-head) {
		return nil, fmt.Errorf("%w: it is not an image of memory", errImage)
	}
	missing := make(map[uint64]uint64, len(cut)) // by start: the right end
	for _, c := range cut {
		missing[c.Start-pageSize] = c.Start + c.Pages*pageSize
	}
	out := append(make([]byte, 0, len(image)+10*len(cut)), image[:head]...)
	for rest := image[head:]; len(rest) > 0; {
		number, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return nil, fmt.Errorf("%w: %w", errImage, protowire.ParseError(n))
		}
		size := protowire.ConsumeFieldValue(number, kind, rest[n:])
		if size < 0 {
			return nil, fmt.Errorf("%w: %w", errImage, protowire.ParseError(size))
		}
		if number == fieldMapping && kind == protowire.BytesType {
			entry, _ := protowire.ConsumeBytes(rest[n:])
			mended, err := mendMapping(entry, missing, pageSize)
			if err != nil {
				return nil, err
			}
			out = protowire.AppendBytes(append(out, rest[:n]...), mended)
		} else {
			out = append(out, rest[:n+size]...)
		}
		rest = rest[n+size:]
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%w: it lacks %d mappings that were cut", errImage, len(missing))
	}
	binary.LittleEndian.PutUint32(out[8:], uint32(len(out)-head))
	return out, nil
}

// mendMapping returns the entry of a mapping, with the correct end if it was cut, and removes it from the
// list.
func mendMapping(entry []byte, missing map[uint64]uint64, pageSize uint64) ([]byte, error) {
	var values [fieldEnd + 1]uint64
	var from, to int // where the end is in the entry
	for at := 0; at < len(entry); {
		number, kind, n := protowire.ConsumeTag(entry[at:])
		if n < 0 {
			return nil, fmt.Errorf("%w: %w", errImage, protowire.ParseError(n))
		}
		size := protowire.ConsumeFieldValue(number, kind, entry[at+n:])
		if size < 0 {
			return nil, fmt.Errorf("%w: %w", errImage, protowire.ParseError(size))
		}
		if kind == protowire.VarintType && (number == fieldStart || number == fieldEnd) {
			values[number], _ = protowire.ConsumeVarint(entry[at+n:])
			if number == fieldEnd {
				from, to = at+n, at+n+size
			}
		}
		at += n + size
	}
	end, wasCut := missing[values[fieldStart]]
	if !wasCut {
		return entry, nil
	}
	if values[fieldEnd] != values[fieldStart]+pageSize {
		return nil, fmt.Errorf("%w: the mapping at %#x was cut, and ends at %#x", errImage,
			values[fieldStart], values[fieldEnd])
	}
	delete(missing, values[fieldStart])
	mended := append([]byte(nil), entry[:from]...)
	mended = protowire.AppendVarint(mended, end)
	return append(mended, entry[to:]...), nil
}
