package memory

import "github.com/godwit/godwit/internal/memory/pageset"

// chunkPages is how many pages are kept together in the sets and tables of pages.
const chunkPages = pageset.ChunkPages

// digest identifies a page's content. It is keyed by a secret of the process, so that nobody can construct
// two contents with the same digest, and long enough that this does not happen by chance.
type digest [2]uint64

// digests remembers the content of pages: 8 KiB for each 2 MiB of address space with remembered pages.
type digests map[uint64]*[chunkPages]digest

// changed reports whether a page's content differs from the remembered one, and remembers the new content.
func (d digests) changed(address uint64, is digest) bool {
	page := address / uint64(PageSize())
	chunk := d[page/chunkPages]
	if chunk == nil {
		chunk = new([chunkPages]digest)
		d[page/chunkPages] = chunk
	}
	was := &chunk[page%chunkPages]
	if *was == is {
		return false
	}
	*was = is
	return true
}
