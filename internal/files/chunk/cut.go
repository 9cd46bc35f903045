package chunk

// Sizes bounds the chunks of one file.
type Sizes struct {
	Least, Most int64
	mask        uint64
}

// MaxChunks is how many chunks a file is cut into at most, so that what is remembered of it is
// bounded: those of a larger file are larger. It is a bound on the average; Least makes four times
// as many the most that there can be.
const MaxChunks = 32 << 10

// smallest is the average size of chunks of all but very large files. A change costs about one
// chunk, and a list of chunks a two-thousandth of the file.
const smallest = 64 << 10

// SizesFor chooses the sizes of chunks for a file.
func SizesFor(size int64) Sizes {
	average := int64(smallest)
	for average < 1<<40 && size/average > MaxChunks {
		average *= 2
	}
	// A gear hash carries the influence of the latest bytes in its highest bits, each byte's for 64
	// bytes. Chunks end where the highest bits are zero, so many that it takes about average-Least
	// bytes to find such a place.
	bits := 0
	for n := average - average/4; n > 1; n /= 2 {
		bits++
	}
	return Sizes{Least: average / 4, Most: average * 4, mask: ^uint64(0) << (64 - bits)}
}

// window is how many bytes have a part in the hash.
const window = 64

// Cutter finds the ends of chunks in a sequence of bytes that comes in pieces. The rolling hash is
// the gear hash of Xia et al., "Ddelta: A Deduplication-Inspired Fast Delta Compression Approach"
// (2014).
type Cutter struct {
	sizes  Sizes
	gear   [256]uint64
	hash   uint64
	length int64 // of the chunk so far
}

// NewCutter returns a cutter at the beginning of a chunk.
func NewCutter(sizes Sizes) *Cutter {
	c := &Cutter{sizes: sizes}
	state := uint64(0)
	for i := range c.gear {
		c.gear[i] = splitmix(&state)
	}
	return c
}

// splitmix is the generator SplitMix64 (Steele, Lea and Flood, 2014): the table needs numbers
// without a pattern.
func splitmix(state *uint64) uint64 {
	*state += 0x9e3779b97f4a7c15
	z := *state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Reset begins a chunk, in a file of which the chunks have these sizes.
func (c *Cutter) Reset(sizes Sizes) { c.sizes, c.hash, c.length = sizes, 0, 0 }

// Next returns how many of the bytes belong to the present chunk, and whether it ends behind them.
func (c *Cutter) Next(data []byte) (n int, end bool) {
	n = c.skip(len(data))
	stop := len(data)
	if left := c.sizes.Most - c.length; int64(stop-n) > left {
		stop = n + int(left)
	}
	hash, mask := c.hash, c.sizes.mask
	start, checked := n, max(c.sizes.Least-c.length, 0)
	for i, b := range data[n:stop] {
		hash = hash<<1 + c.gear[b]
		if hash&mask == 0 && int64(i) >= checked {
			c.hash, c.length = 0, 0
			return start + i + 1, true
		}
	}
	c.hash = hash
	c.length += int64(stop - start)
	if c.length >= c.sizes.Most {
		c.hash, c.length = 0, 0
		return stop, true
	}
	return stop, false
}

// skip passes over bytes that have no part in any decision.
func (c *Cutter) skip(available int) int {
	ahead := c.sizes.Least - window - c.length
	if ahead <= 0 {
		return 0
	}
	n := int(min(ahead, int64(available)))
	c.length += int64(n)
	return n
}
