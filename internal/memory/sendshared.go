package memory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/godwit/godwit/internal/kernel"
)

// sharedChunk is how much shared memory is read at a time: it stays in a core's cache until it is compared.
const sharedChunk = 256 << 10

// send sends the changes of memory that processes share.
//
// A writer may have unmapped it since, have it open without a mapping, or have lived only between two
// looks. So while the processes run, all of it is read and compared, and in the freeze, too, unless it is
// certain that nobody can have written to it unseen since (watch).
func (s *sharing) send(ctx context.Context, r *reader, frozen bool) error {
	if !frozen {
		s.sent, s.looked = false, false
		if err := s.look(); err != nil {
			return err
		}
		s.watchAll()
	}
	if s.sent && !s.tasks.directIO() {
		return nil // frozen it does not change: CRIU changes memory of the processes' own only
	}
	unseen := ""
	if frozen && len(s.objects) > 0 {
		unseen = s.unseen()
	}
	for _, o := range s.inOrder() {
		why := unseen
		if frozen && why == "" {
			why = o.touched(s.device)
		}
		compare := !frozen || why != ""
		if compare {
			r.stats.ComparedPages += uint64(o.blocks()) / uint64(PageSize())
		}
		if why != "" {
			r.stats.Unseen = why
		}
		if err := o.send(ctx, r, compare, frozen); err != nil {
			return fmt.Errorf("shared memory %q, inode %d: %w", o.Name, o.Inode, err)
		}
	}
	s.sent = frozen
	return nil
}

// sendAgain sends pages of an object, whatever was sent of them. It skips pages that are gone.
func (s *sharing) sendAgain(ctx context.Context, r *reader, wanted TaskMap) error {
	for _, o := range s.objects {
		if o.Task != wanted.Task {
			continue
		}
		r.begin(o.owner, func(uint64, []byte) bool { return true })
		for _, a := range wanted.Areas {
			err := o.sendAgain(ctx, r,
				kernel.DataRange{Start: a.Start, End: a.Start + a.Pages*uint64(PageSize())})
			if err != nil {
				return fmt.Errorf("shared memory %q, inode %d: %w", o.Name, o.Inode, err)
			}
		}
	}
	return nil
}

func (o *object) sendAgain(ctx context.Context, r *reader, part kernel.DataRange) error {
	if part.Start == descriptionAddress {
		o.told = nil
		return o.tell(r)
	}
	return o.sendRange(ctx, r, part)
}

// tell sends the description if it has changed.
func (o *object) tell(r *reader) error {
	if o.told != nil && *o.told == o.Object {
		return nil
	}
	told := o.Object
	if err := r.sink.Put(Run{Task: o.Task, Address: descriptionAddress, Pages: 1},
		told.description()); err != nil {
		return err
	}
	o.told = &told
	return nil
}

// send sends the changes. Without comparing, these are the pages that were never sent.
func (o *object) send(ctx context.Context, r *reader, compare, frozen bool) error {
	if err := o.describe(); err != nil {
		return err
	}
	if err := o.tell(r); err != nil {
		return err
	}
	data, err := kernel.DataRanges(o.file)
	if err != nil {
		return err
	}
	r.begin(o.owner, o.known.changed)
	send := o.sendAll
	switch {
	case !compare:
		send = o.sendNew
	case frozen:
		send = o.sendDiffering
	}
	if err := send(ctx, r, data); err != nil {
		return err
	}
	o.data = data
	return nil
}

// sendAll reads everything and sends the changes.
func (o *object) sendAll(ctx context.Context, r *reader, data []kernel.DataRange) error {
	for _, part := range data {
		if err := o.sendRange(ctx, r, part); err != nil {
			return err
		}
	}
	return nil
}

// sendNew sends those pages that were never sent.
func (o *object) sendNew(ctx context.Context, r *reader, data []kernel.DataRange) error {
	var never []kernel.DataRange // what is sent is added to that set
	for _, part := range data {
		err := o.owner.sent.In(part.Start, wholePages(part.End), false, func(one kernel.PageRange) error {
			never = append(never, kernel.DataRange{Start: one.Start, End: one.End})
			return nil
		})
		if err != nil {
			return err
		}
	}
	return o.sendAll(ctx, r, never)
}

// wholePages rounds an offset up to whole pages.
func wholePages(offset uint64) uint64 {
	size := uint64(PageSize())
	return (offset + size - 1) / size * size
}

// sendRange reads a part, compares it, and sends the changes. Only a part of the last page may belong to
// the object.
func (o *object) sendRange(ctx context.Context, r *reader, part kernel.DataRange) error {
	part.End = wholePages(part.End)
	for at := part.Start; at < part.End; {
		if err := ctx.Err(); err != nil {
			return err
		}
		buffer := r.buffer[:min(part.End-at, sharedChunk)]
		start := time.Now()
		n, err := o.file.ReadAt(buffer, int64(at))
		r.stats.Read += time.Since(start)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		clear(buffer[n:]) // it is shorter than it was, or ends within a page
		if err := r.emitRange(at, buffer); err != nil {
			return err
		}
		at += uint64(len(buffer))
	}
	return nil
}

// contents lists which pages an object has, as of the last round.
func (o *object) contents() TaskMap {
	size := uint64(PageSize())
	m := TaskMap{Task: o.Task}
	for _, part := range o.data {
		m.Areas = append(m.Areas, Area{Start: part.Start, Pages: (part.End - part.Start + size - 1) / size})
	}
	m.Areas = append(m.Areas, Area{Start: descriptionAddress, Pages: 1})
	return m
}
