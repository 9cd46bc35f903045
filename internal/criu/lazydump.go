package criu

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// A lazy dump (DumpRequest.LazyPages) writes everything except the content of private anonymous memory, and
// lists the pages that somebody else must provide. CRIU would serve them itself, with a page server, after
// its notification post-dump. It never gets there, because it is killed while it waits for the answer.

// LazyMemory lists the pages of one process that a lazy dump has left out.
type LazyMemory struct {
	PID    uint32 // as in the names of the images: in its own PID namespace
	Ranges []PageRange
}

// PageRange is a number of consecutive pages at an address.
type PageRange struct {
	Start uint64
	Pages uint64
}

const (
	imageCommon   = 0x54564319 // IMG_COMMON_MAGIC of criu/include/magic.h
	imagePagemap  = 0x56084025 // PAGEMAP_MAGIC
	pagemapPrefix = "pagemap-"

	pageLazy    = 1 << 1 // PE_LAZY of criu/include/pagemap.h
	pagePresent = 1 << 2 // PE_PRESENT: the content is in the images

	maxImageEntry = 1 << 16 // a pagemap entry has some 20 bytes
)

// LeftOut reads from the images of a lazy dump which pages are not in them.
func LeftOut(imagesDir string) ([]LazyMemory, error) {
	entries, err := os.ReadDir(imagesDir)
	if err != nil {
		return nil, fmt.Errorf("list the pages that a dump left out: %w", err)
	}
	var all []LazyMemory
	for _, e := range entries {
		digits, ok := strings.CutSuffix(e.Name(), ".img")
		if !ok || !strings.HasPrefix(digits, pagemapPrefix) {
			continue
		}
		pid, err := strconv.ParseUint(digits[len(pagemapPrefix):], 10, 32)
		if err != nil {
			continue // pagemap-shmem-ID.img: shared memory is never left out
		}
		ranges, err := leftOutOf(filepath.Join(imagesDir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("list the pages that a dump left out: %s: %w", e.Name(), err)
		}
		if len(ranges) > 0 {
			all = append(all, LazyMemory{PID: uint32(pid), Ranges: ranges})
		}
	}
	slices.SortFunc(all, func(a, b LazyMemory) int { return int(a.PID) - int(b.PID) })
	return all, nil
}

func leftOutOf(path string) ([]PageRange, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parsePagemap(bufio.NewReaderSize(f, 64<<10))
}

var errImage = errors.New("it is an image of an unknown kind")

// parsePagemap parses two magic numbers, a header that does not matter, and entries.
func parsePagemap(r io.Reader) ([]PageRange, error) {
	var magic [8]byte
	if _, err := io.ReadFull(r, magic[:]); err != nil {
		return nil, fmt.Errorf("%w: %w", errImage, err)
	}
	if binary.LittleEndian.Uint32(magic[:]) != imageCommon ||
		binary.LittleEndian.Uint32(magic[4:]) != imagePagemap {
		return nil, fmt.Errorf("%w: it begins with %x", errImage, magic)
	}
	if _, err := readImageEntry(r, maxImageEntry); err != nil {
		return nil, fmt.Errorf("%w: no head: %w", errImage, err)
	}
	var ranges []PageRange
	for {
		data, err := readImageEntry(r, maxImageEntry)
		if errors.Is(err, io.EOF) {
			return ranges, nil
		}
		if err != nil {
			return nil, err
		}
		one, err := parsePagemapEntry(data)
		if err != nil {
			return nil, err
		}
		if one.Pages > 0 {
			ranges = append(ranges, one)
		}
	}
}

// Fields of pagemap_entry (images/pagemap.proto of CRIU 4.2; go-criu 7.2 does not know the last one).
const (
	fieldAddress     = 1
	fieldCompatPages = 2 // 0 in images of CRIU 4.1 and later
	fieldFlags       = 4
	fieldPages       = 5
)

// parsePagemapEntry returns a range without pages if they are in the images.
func parsePagemapEntry(data []byte) (PageRange, error) {
	var fields [fieldPages + 1]uint64
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return PageRange{}, fmt.Errorf("%w: %w", errImage, protowire.ParseError(n))
		}
		data = data[n:]
		if kind == protowire.VarintType && number <= fieldPages {
			fields[number], n = protowire.ConsumeVarint(data)
		} else {
			n = protowire.ConsumeFieldValue(number, kind, data)
		}
		if n < 0 {
			return PageRange{}, fmt.Errorf("%w: %w", errImage, protowire.ParseError(n))
		}
		data = data[n:]
	}
	if fields[fieldFlags]&(pageLazy|pagePresent) != pageLazy {
		return PageRange{}, nil
	}
	return PageRange{Start: fields[fieldAddress], Pages: max(fields[fieldPages], fields[fieldCompatPages])},
		nil
}

// readImageEntry reads a length and that many bytes. io.EOF means that there is no entry.
func readImageEntry(r io.Reader, most uint32) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, io.EOF
		}
		return nil, fmt.Errorf("%w: %w", errImage, err)
	}
	n := binary.LittleEndian.Uint32(size[:])
	if n > most {
		return nil, fmt.Errorf("%w: an entry of %d bytes", errImage, n)
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(r, data); err != nil {
		return nil, fmt.Errorf("%w: an entry is cut off", errImage)
	}
	return data, nil
}
