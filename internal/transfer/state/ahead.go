package state

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/regular"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pipeline"
)

// What a dynamic linker writes to a page are some addresses; the rest of it is as in the file,
// which the target has if it comes from the image. So such a page goes ahead as a delta to the page
// of the file in the image's layer, which is the same at both nodes, by its digest. From which of
// the layers it comes, or whether it has been replaced since, does not matter: any page that both
// have will do.
//
// The pages are a sequence of numbers (uvarint), followed by what they announce:
//
//	0                         the page as it is
//	file, page, length        the number of a file, counted from 1, that of a page in it, and a delta to
//	                          that page
//	  the first time: layer, length    before page: the number of the image's layer, and the path of the
//	                                   file in it
//
// After the last one comes noMore and the digest of all pages.

const (
	noMore = 1 << 32
	// mostBases bounds the files, each of which is open at both nodes meanwhile, mostPath their paths.
	mostBases = 1 << 8
	mostPath  = unix.PathMax
)

// Layers are the files in the layers of an image that is in a store of Godwit's.
type Layers struct {
	store  Store
	layers []string // DiffIDs, lowest first
}

// Store has the layers of images, each as a directory.
type Store interface {
	LayerPath(diffID string) (string, error)
}

// NewLayers are layers in a store, by their DiffIDs, the lowest first.
func NewLayers(store Store, diffIDs []string) Layers { return Layers{store, diffIDs} }

var errNoFile = errors.New("there is no such file")

// open opens a regular file in a layer, by its path from the root. Layers and paths are what a peer says.
func (l Layers) open(layer uint64, path string) (*os.File, error) {
	if layer >= uint64(len(l.layers)) {
		return nil, fmt.Errorf("layer %d of %d: %w", layer, len(l.layers), errNoFile)
	}
	dir, err := l.store.LayerPath(l.layers[layer])
	if err != nil {
		return nil, err
	}
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("layer %s: %w", l.layers[layer], err)
	}
	defer unix.Close(root)
	const resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS |
		unix.RESOLVE_NO_MAGICLINKS
	file, err := regular.Openat(root, path, resolve, unix.O_NOATIME)
	if err != nil {
		return nil, fmt.Errorf("layer %s: %w", l.layers[layer], err)
	}
	return file, nil
}

// find looks for a file from the highest layer on.
func (l Layers) find(path string) (layer int, file *os.File) {
	for layer = len(l.layers) - 1; layer >= 0; layer-- {
		if file, err := l.open(uint64(layer), path); err == nil {
			return layer, file
		}
	}
	return 0, nil
}

// aheadPages makes what leaves.
type aheadPages struct {
	layers  Layers
	encoded []byte
	bases   map[string]*pageBase // by path; nil: there is none
	number  uint64               // of the last base
	page    []byte               // room for one
}

// pageBase is a file to whose pages there are deltas.
type pageBase struct {
	file   *os.File
	number uint64 // 0: not told yet
	layer  int
	path   string
}

func (p *aheadPages) add(page memory.FilePage) {
	base := p.baseOf(page)
	if base == nil || !p.putDelta(base, page) {
		p.encoded = append(binary.AppendUvarint(p.encoded, 0), page.Content...)
	}
}

// baseOf finds the file of a page in the image.
func (p *aheadPages) baseOf(page memory.FilePage) *pageBase {
	base, known := p.bases[page.File]
	if known || len(p.bases) >= mostBases {
		return base
	}
	if p.bases == nil {
		p.bases = map[string]*pageBase{}
	}
	path := strings.TrimPrefix(page.File, "/")
	if layer, file := p.layers.find(path); file != nil {
		base = &pageBase{file: file, layer: layer, path: path}
	}
	p.bases[page.File] = base
	return base
}

// putDelta adds a page as what changed in it, if that is worth it.
func (p *aheadPages) putDelta(base *pageBase, page memory.FilePage) bool {
	const worth = 4 // a delta of three quarters of a page, or less
	size := len(page.Content)
	if p.page == nil {
		p.page = make([]byte, size)
	}
	if page.Offset%uint64(size) != 0 || readPage(base.file, page.Offset/uint64(size), p.page) != nil {
		return false
	}
	delta, small := pipeline.AppendDelta(nil, p.page, page.Content, size-size/worth)
	if !small {
		return false
	}
	if base.number == 0 {
		p.number++
		base.number = p.number
		p.encoded = binary.AppendUvarint(p.encoded, base.number)
		p.encoded = binary.AppendUvarint(p.encoded, uint64(base.layer))
		p.encoded = append(binary.AppendUvarint(p.encoded, uint64(len(base.path))), base.path...)
	} else {
		p.encoded = binary.AppendUvarint(p.encoded, base.number)
	}
	p.encoded = binary.AppendUvarint(p.encoded, page.Offset/uint64(size))
	p.encoded = append(binary.AppendUvarint(p.encoded, uint64(len(delta))), delta...)
	return true
}

// all is what leaves, of which content is made.
func (p *aheadPages) all(content []byte) []byte {
	digest := sha256.Sum256(content)
	return append(binary.AppendUvarint(p.encoded, noMore), digest[:]...)
}

// close forgets all but what is known then.
func (p *aheadPages) close() {
	for _, base := range p.bases {
		if base != nil {
			_ = base.file.Close() // it was only read
		}
	}
	*p = aheadPages{}
}

// readPage reads a page of a file. What is beyond its end is zero, as in a mapping.
func readPage(file io.ReaderAt, number uint64, page []byte) error {
	if number > 1<<40 {
		return fmt.Errorf("page %d of a file: %w", number, io.EOF)
	}
	n, err := file.ReadAt(page, int64(number)*int64(len(page)))
	if n < len(page) && (n == 0 || !errors.Is(err, io.EOF)) {
		return fmt.Errorf("page %d of a file: %w", number, err)
	}
	clear(page[n:])
	return nil
}

// ReceiveKnown reads the pages that come ahead.
func ReceiveKnown(section io.Reader, layers Layers) ([]byte, error) {
	r := comingPages{in: bufio.NewReader(section), layers: layers}
	defer r.close()
	err := r.all()
	if err != nil {
		return nil, fmt.Errorf("pages that come ahead: %w", err)
	}
	return r.content, nil
}

// comingPages reads what an aheadPages has made.
type comingPages struct {
	in      *bufio.Reader
	layers  Layers
	bases   []*os.File
	content []byte
}

func (r *comingPages) close() {
	for _, file := range r.bases {
		_ = file.Close() // it was only read
	}
}

var errAhead = errors.New("they are malformed")

// ErrLacking says that what came cannot be made pages of: of a file that is missing, cannot be
// read, or is not what it was.
var ErrLacking = errors.New("a layer of the image is damaged on one of the nodes; remove the image there, " +
	"and load it anew")

func (r *comingPages) all() error {
	size := memory.PageSize()
	for {
		file, err := binary.ReadUvarint(r.in)
		if err != nil {
			return err
		}
		if file == noMore {
			return r.check()
		}
		at := len(r.content)
		if at+size > mostKnown {
			return fmt.Errorf("%w: more than %d bytes", errAhead, mostKnown)
		}
		r.content = append(r.content, make([]byte, size)...)
		page := r.content[at:]
		if file == 0 {
			_, err = io.ReadFull(r.in, page)
		} else {
			err = r.delta(file, page)
		}
		if err != nil {
			return err
		}
	}
}

// delta makes a page of that of a file.
func (r *comingPages) delta(file uint64, page []byte) error {
	if file == uint64(len(r.bases))+1 {
		if err := r.takeBase(); err != nil {
			return err
		}
	}
	if file > uint64(len(r.bases)) {
		return fmt.Errorf("%w: file %d of %d", errAhead, file, len(r.bases))
	}
	number, err := binary.ReadUvarint(r.in)
	if err != nil {
		return err
	}
	if err := readPage(r.bases[file-1], number, page); err != nil {
		return fmt.Errorf("%w: %w", ErrLacking, err)
	}
	delta, err := r.bytes(uint64(len(page)))
	if err != nil {
		return err
	}
	return pipeline.ApplyDelta(page, delta)
}

// takeBase opens a file of which is told the first time.
func (r *comingPages) takeBase() error {
	if len(r.bases) >= mostBases {
		return fmt.Errorf("%w: more than %d files", errAhead, mostBases)
	}
	layer, err := binary.ReadUvarint(r.in)
	if err != nil {
		return err
	}
	path, err := r.bytes(mostPath)
	if err != nil {
		return err
	}
	file, err := r.layers.open(layer, string(path))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrLacking, err)
	}
	r.bases = append(r.bases, file)
	return nil
}

// bytes reads some whose number comes before them.
func (r *comingPages) bytes(most uint64) ([]byte, error) {
	n, err := binary.ReadUvarint(r.in)
	if err != nil {
		return nil, err
	}
	if n > most {
		return nil, fmt.Errorf("%w: %d bytes; the limit is %d", errAhead, n, most)
	}
	all := make([]byte, n)
	_, err = io.ReadFull(r.in, all)
	return all, err
}

// check compares the pages with what they should be: before the freeze, so that a layer which is
// not what it was costs no more than that they go in it.
func (r *comingPages) check() error {
	var want [sha256.Size]byte
	if _, err := io.ReadFull(r.in, want[:]); err != nil {
		return err
	}
	if sha256.Sum256(r.content) != want {
		return fmt.Errorf("they have changed: %w", ErrLacking)
	}
	if _, err := r.in.ReadByte(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: more follows", errAhead)
	}
	return nil
}
