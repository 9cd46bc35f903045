package copies

import (
	"encoding/binary"
	"errors"

	"github.com/godwit/godwit/internal/files/chunk"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/manifest"
	"github.com/godwit/godwit/internal/files/records"
)

// span is a piece of a file's content. In lists on disk it is a chunk or a hole; on the way it may
// also be one that the mirror has.
type span struct {
	op     records.ContentOp
	length int64
	from   int64 // of a copy
	digest chunk.Digest
}

const (
	spanSize = 8 + 16

	// maxSpans bounds lists, which are in memory while a file is looked at. A file in more pieces,
	// because it has so many holes, is sent whole each time.
	maxSpans = 8 * chunk.MaxChunks
)

func (s *Source) keepList(list []span) (manifest.Content, error) {
	if len(list) > maxSpans {
		return manifest.Content{}, nil
	}
	p := make([]byte, 0, len(list)*spanSize)
	for _, piece := range list {
		length := piece.length
		if piece.op == records.OpHole {
			length = -length
		}
		p = binary.LittleEndian.AppendUint64(p, uint64(length))
		p = append(p, piece.digest[:]...)
	}
	offset, err := s.lists.Append(p)
	return manifest.Content{Form: manifest.ContentList, Offset: offset, Count: uint32(len(list))}, err
}

func (s *Source) loadList(c manifest.Content) ([]span, error) {
	if c.Form != manifest.ContentList {
		return nil, nil
	}
	p := make([]byte, int(c.Count)*spanSize)
	if err := s.lists.ReadAt(p, c.Offset); err != nil {
		return nil, err
	}
	list := make([]span, c.Count)
	for i := range list {
		length := int64(binary.LittleEndian.Uint64(p[i*spanSize:]))
		list[i] = span{op: records.OpData, length: length}
		if length < 0 {
			list[i] = span{op: records.OpHole, length: -length}
		}
		copy(list[i].digest[:], p[i*spanSize+8:])
	}
	return list, nil
}

// content sends a file, in emit.
func (c *copier) content(r *fileReader, s *subject, h how, res *result) error {
	if s.fd >= 0 && s.entry.Size > inlineSize {
		return c.large(r, s, h, res)
	}
	r.record.Scratch = r.record.Scratch[:0]
	if err := c.small(r, s, h, res); err != nil {
		return err
	}
	c.out.Entries += uint64(res.entries)
	c.out.Content += res.data
	_, err := c.out.Out.Write(r.record.Scratch)
	return err
}

// large sends a file whose content is read into the stream.
func (c *copier) large(r *fileReader, s *subject, h how, res *result) error {
	res.known = r.known(s, c.source.since.Settled(&c.tree.Tree, &s.stat, s.entry.Name))
	l := &largeFile{copier: c, reader: r, fd: s.fd, size: s.entry.Size,
		cutter: chunk.NewCutter(chunk.SizesFor(s.entry.Size))}
	kind := records.InPlace
	var steps []span
	if c.onlyRead(s, h) {
		kind = records.KeepContent
	} else if h.old != nil {
		old, err := c.source.loadList(h.old.Content)
		if err != nil {
			return err
		}
		if steps, kind, err = l.compare(old, s.entry.Links == 0); err != nil {
			return err
		}
	}
	if kind == records.KeepContent && h.number == 0 && h.old.Attrs == res.known.Attrs {
		res.known.Content = h.old.Content
		return nil
	}
	r.record.Scratch = r.record.Scratch[:0]
	r.head(&s.entry, h, kind)
	c.out.Entries++
	if _, err := c.out.Out.Write(r.record.Scratch); err != nil {
		return err
	}
	if kind == records.KeepContent {
		res.known.Content, res.kept = h.old.Content, h.kept(min(s.entry.Size, s.entry.Stored))
		return nil
	}
	res.kept = h.kept(lengthOf(steps, records.OpKeep) + lengthOf(steps, records.OpCopy))
	err := l.send(steps)
	if errors.Is(err, fsys.ErrShorter) && c.tolerates(err) {
		res.known.Settled, err = false, nil
		if left := l.size - length(l.list); left > 0 {
			l.add(span{op: records.OpHole, length: left})
		}
	}
	if err != nil {
		return err
	}
	if res.known.Content, err = c.source.keepList(l.list); err != nil {
		return err
	}
	return c.out.EndContent()
}

// largeFile is one on its way.
type largeFile struct {
	*copier
	reader *fileReader
	fd     int
	size   int64
	cutter *chunk.Cutter
	list   []span // of what the mirror will have
}

// add notes a piece. A list that is too long is not kept.
func (l *largeFile) add(s span) {
	if len(l.list) <= maxSpans {
		l.list = append(l.list, s)
	}
}

// send sends the content: as the steps say, or, if there are none, all of it.
func (l *largeFile) send(steps []span) error {
	if steps == nil {
		return l.all()
	}
	position, kept := int64(0), int64(0)
	for i, step := range steps {
		var err error
		switch step.op {
		case records.OpKeep:
			// Pieces in a row are one operation.
			if kept += step.length; i+1 == len(steps) || steps[i+1].op != records.OpKeep {
				err, kept = l.out.Keep(kept), 0
			}
		case records.OpHole:
			err = l.out.Hole(step.length)
		case records.OpCopy:
			err = l.out.Copy(step.from, step.length)
		default:
			err = l.data(position, position+step.length)
		}
		if err != nil {
			return err
		}
		switch {
		case step.op == records.OpCopy:
			l.add(span{op: records.OpData, length: step.length, digest: step.digest})
		case step.op == records.OpKeep && step.from < 0: // of a hole
			l.add(span{op: records.OpHole, length: step.length})
		case step.op == records.OpKeep:
			l.add(span{op: records.OpData, length: step.length, digest: step.digest})
		case step.op == records.OpHole:
			l.add(span{op: records.OpHole, length: step.length})
		}
		position += step.length
	}
	return nil
}

// all sends everything.
func (l *largeFile) all() error {
	for done := int64(0); done < l.size; {
		if err := l.ctx.Err(); err != nil {
			return err
		}
		start, end, err := fsys.NextData(l.fd, done, l.size)
		if err != nil {
			return err
		}
		if start > done {
			l.add(span{op: records.OpHole, length: start - done})
			if err := l.out.Hole(start - done); err != nil {
				return err
			}
		}
		if err := l.data(start, end); err != nil {
			return err
		}
		done = end
	}
	return nil
}

// data sends the bytes from start to end and cuts them into chunks.
func (l *largeFile) data(start, end int64) error {
	l.cutter.Reset(chunk.SizesFor(l.size))
	length := int64(0) // of the present chunk
	for start < end {
		if err := l.ctx.Err(); err != nil {
			return err
		}
		var piece []byte
		n, err := l.out.Data(end-start, func(space []byte) (int, error) {
			n, err := fsys.ReadMost(l.fd, space, start)
			piece = space[:n]
			if err == nil && n < len(space) {
				err = fsys.ErrShorter
			}
			l.cut(piece, &length)
			return n, err
		})
		l.reader.read += int64(n)
		start += int64(n)
		if err != nil {
			l.endChunk(&length)
			return err
		}
	}
	l.endChunk(&length)
	return nil
}

func (l *largeFile) cut(p []byte, length *int64) {
	for len(p) > 0 {
		n, end := l.cutter.Next(p)
		l.reader.hasher.Write(p[:n])
		*length += int64(n)
		if p = p[n:]; end {
			l.endChunk(length)
		}
	}
}

func (l *largeFile) endChunk(length *int64) {
	if *length > 0 {
		l.add(span{op: records.OpData, length: *length, digest: l.reader.hasher.Sum()})
		*length = 0
	}
}
