package copies

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/godwit/godwit/internal/files/chunk"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/records"
	"github.com/godwit/godwit/internal/guard"
)

// compare says how the mirror's content becomes what the file's is. It looks first whether the
// pieces that the mirror has are still where they were, which most are in files that are changed in
// place, and cuts into chunks only what differs.
func (l *largeFile) compare(old []span, mayCopy bool) (steps []span, kind records.ContentKind, err error) {
	if len(old) == 0 {
		return nil, records.InPlace, nil
	}
	same, err := l.compareAll(old)
	if err != nil {
		return nil, records.InPlace, err
	}
	d := &makeover{largeFile: l, old: old, mayCopy: mayCopy}
	position := int64(0)
	for i, piece := range old {
		if same[i] {
			if err := d.until(position); err != nil {
				return nil, records.InPlace, err
			}
			step := span{op: records.OpKeep, length: piece.length, digest: piece.digest}
			if piece.op == records.OpHole {
				step.from = -1
			}
			d.steps = append(d.steps, step)
			d.from = position + piece.length
		}
		position += piece.length
	}
	if err := d.until(l.size); err != nil {
		return nil, records.InPlace, err
	}
	if d.kind == records.KeepContent && position != l.size {
		d.kind = records.InPlace
	}
	d.weigh()
	if len(d.steps) > maxSpans {
		return nil, records.InPlace, nil
	}
	return d.steps, d.kind, nil
}

// makeover collects the steps that make one content of another.
type makeover struct {
	*largeFile
	old     []span
	mayCopy bool
	index   map[chunk.Digest]int64 // where the old chunks are; made when it is needed
	from    int64                  // up to where the steps lead
	steps   []span
	kind    records.ContentKind
}

// makeAnew is the part of a file that must be copies for them to be used: the other end makes the
// whole file anew for the first of them, and needs room for it twice.
const makeAnew = 64

// weigh gives up copies if there are few of them, and has what they would bring sent.
func (d *makeover) weigh() {
	copied := lengthOf(d.steps, records.OpCopy)
	if copied == 0 || copied >= d.size/makeAnew {
		return
	}
	d.kind = records.InPlace
	for i, s := range d.steps {
		if s.op == records.OpCopy {
			d.steps[i] = span{op: records.OpData, length: s.length}
		}
	}
}

// until adds steps for what differs, up to a position.
func (d *makeover) until(end int64) error {
	if d.from == end {
		return nil
	}
	d.kind = max(d.kind, records.InPlace)
	if d.mayCopy && d.index == nil && end-d.from >= worthCopies {
		d.index = positions(d.old)
	}
	found, err := d.cutAgain(d.from, end, d.index)
	for _, s := range found {
		if s.op == records.OpCopy {
			d.kind = records.WithCopies
		}
	}
	d.steps = append(d.steps, found...)
	return err
}

// compareAll tells of each piece of the mirror's content whether the file has it at the same place.
// In the freeze a large file that was written a moment ago is the longest that there is to do, so
// all processors read it.
func (l *largeFile) compareAll(old []span) ([]bool, error) {
	const portion = 16 // pieces, about a MiB
	var (
		same      = make([]bool, len(old))
		positions = make([]int64, len(old))
		next      atomic.Int64
		workers   = min(l.source.config.Workers, len(old)/portion+1)
		failed    = make([]error, workers)
		running   sync.WaitGroup
	)
	for i := 1; i < len(old); i++ {
		positions[i] = positions[i-1] + old[i-1].length
	}
	work := func(r *fileReader) error {
		for {
			end := int(next.Add(portion))
			if end-portion >= len(old) || l.ctx.Err() != nil {
				return l.ctx.Err()
			}
			for i := end - portion; i < min(end, len(old)); i++ {
				var err error
				if same[i], err = l.holds(r, old[i], positions[i]); err != nil {
					return err
				}
			}
		}
	}
	readers := []*fileReader{l.reader}
	for i := 1; i < workers; i++ {
		r, err := l.source.newFileReader()
		if err != nil {
			return nil, err
		}
		readers = append(readers, r)
	}
	for i, r := range readers[1:] {
		running.Go(func() { failed[i+1] = guard.Do(func() error { return work(r) }) })
	}
	failed[0] = guard.Do(func() error { return work(l.reader) })
	running.Wait()
	for _, r := range readers[1:] {
		l.reader.read += r.read
	}
	return same, errors.Join(failed...)
}

// worthCopies is from how many bytes on it pays to look for them elsewhere in the old content.
const worthCopies = 512 << 10

func length(list []span) (total int64) {
	for _, s := range list {
		total += s.length
	}
	return total
}

// lengthOf is the length of those of one kind, without holes.
func lengthOf(list []span, op records.ContentOp) (total int64) {
	for _, s := range list {
		if s.op == op && s.from >= 0 {
			total += s.length
		}
	}
	return total
}

// positions tells where chunks are.
func positions(list []span) map[chunk.Digest]int64 {
	index := make(map[chunk.Digest]int64, len(list))
	position := int64(0)
	for _, s := range list {
		if s.op == records.OpData {
			index[s.digest] = position
		}
		position += s.length
	}
	return index
}

// holds reports whether a piece of the mirror's content is what the file has at the same place.
func (l *largeFile) holds(r *fileReader, piece span, position int64) (bool, error) {
	end := position + piece.length
	if end > l.size {
		return false, nil
	}
	start, dataEnd, err := fsys.NextData(l.fd, position, l.size)
	if err != nil {
		return false, err
	}
	if piece.op == records.OpHole {
		return start >= end || start == dataEnd, nil
	}
	if start != position || dataEnd < end {
		return false, nil
	}
	digest, err := r.digest(l.fd, position, end)
	if errors.Is(err, fsys.ErrShorter) {
		return false, nil
	}
	return digest == piece.digest, err
}

// digest hashes bytes of the file.
func (r *fileReader) digest(fd int, start, end int64) (chunk.Digest, error) {
	if r.buffer == nil {
		r.buffer = make([]byte, 256<<10)
	}
	for start < end {
		p := r.buffer[:min(int64(len(r.buffer)), end-start)]
		n, err := fsys.ReadMost(fd, p, start)
		if err == nil && n < len(p) {
			err = fsys.ErrShorter
		}
		if err != nil {
			r.hasher.Sum()
			return chunk.Digest{}, err
		}
		r.read += int64(n)
		r.hasher.Write(p)
		start += int64(n)
	}
	return r.hasher.Sum(), nil
}

// cutAgain cuts a piece of the file into chunks, and looks for them in the old content.
func (l *largeFile) cutAgain(from, to int64, index map[chunk.Digest]int64) (steps []span, err error) {
	for from < to && len(steps) <= maxSpans { // more are not used
		start, end, err := fsys.NextData(l.fd, from, to)
		if err != nil {
			return nil, err
		}
		if start > from {
			steps = append(steps, span{op: records.OpHole, length: start - from})
		}
		if index == nil {
			if end > start {
				steps = append(steps, span{op: records.OpData, length: end - start})
			}
		} else if steps, err = l.lookUp(steps, start, end, index); err != nil {
			return nil, err
		}
		from = end
	}
	return steps, nil
}

// lookUp cuts data into chunks and appends the steps for them: copies, and what lies between.
func (l *largeFile) lookUp(steps []span, start, end int64, index map[chunk.Digest]int64) ([]span, error) {
	r := l.reader
	if r.buffer == nil {
		r.buffer = make([]byte, 256<<10)
	}
	l.cutter.Reset(chunk.SizesFor(l.size))
	length := int64(0)
	chunkEnds := func() {
		digest := r.hasher.Sum()
		from, known := index[digest]
		last := len(steps) - 1
		switch {
		case known:
			steps = append(steps, span{op: records.OpCopy, length: length, from: from, digest: digest})
		case last >= 0 && steps[last].op == records.OpData:
			steps[last].length += length
		default:
			steps = append(steps, span{op: records.OpData, length: length})
		}
		length = 0
	}
	for start < end {
		if err := l.ctx.Err(); err != nil {
			return nil, err
		}
		p := r.buffer[:min(int64(len(r.buffer)), end-start)]
		n, err := fsys.ReadMost(l.fd, p, start)
		if err != nil {
			return nil, err
		}
		if n < len(p) { // It became shorter: sending it will find that out.
			length += end - start
			break
		}
		start += int64(n)
		for len(p) > 0 {
			n, ends := l.cutter.Next(p)
			r.hasher.Write(p[:n])
			length += int64(n)
			if p = p[n:]; ends {
				chunkEnds()
			}
		}
	}
	if length > 0 {
		chunkEnds()
	}
	return steps, nil
}
