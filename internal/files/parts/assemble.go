package parts

import (
	"errors"
	"fmt"
	"io"

	"github.com/godwit/godwit/internal/files/chunk"
)

// ErrDiffers says that a part is not what the list says.
var ErrDiffers = errors.New("a part of the archive is something else")

// Assemble puts an archive together: from the missing parts, one after the other, and from the
// other archives, which are not read where nothing of them is used. Nothing is taken without a look
// at its digest.
func (p *Plan) Assemble(missing io.Reader, others []io.Reader) io.Reader {
	hasher, err := newHasher()
	a := &assembly{plan: p, missing: missing, hasher: hasher, failed: err}
	for _, other := range others {
		a.others = append(a.others, &forward{in: other})
	}
	return a
}

type assembly struct {
	plan    *Plan
	missing io.Reader
	others  []*forward
	hasher  *chunk.Hasher
	next    int
	rest    []byte // of the part before next
	buffer  []byte
	failed  error
}

func (a *assembly) Read(p []byte) (int, error) {
	for len(a.rest) == 0 && a.failed == nil {
		if a.next == len(a.plan.wanted) {
			a.failed = io.EOF
			break
		}
		a.rest, a.failed = a.part(a.plan.wanted[a.next], a.plan.at[a.next])
		a.next++
	}
	if a.failed != nil {
		return 0, a.failed
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

func (a *assembly) part(part Part, at place) (content []byte, err error) {
	from := "what came"
	if at.other >= 0 {
		from = "another archive"
		content, err = a.others[at.other].read(at.offset, int(part.Length))
	} else {
		if cap(a.buffer) < int(part.Length) {
			a.buffer = make([]byte, part.Length)
		}
		content = a.buffer[:part.Length]
		_, err = io.ReadFull(a.missing, content)
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF // an archive ends only where it ends
	}
	if err == nil && a.hasher.Of(content) != part.Digest {
		err = ErrDiffers
	}
	if err != nil {
		return nil, fmt.Errorf("part %d of the archive, from %s: %w", a.next, from, err)
	}
	return content, nil
}

// forward reads pieces of an archive that come one after the other. The last one can be read again.
type forward struct {
	in     io.Reader
	offset int64 // of what is read next
	last   []byte
}

func (f *forward) read(offset int64, length int) ([]byte, error) {
	if offset == f.offset-int64(len(f.last)) && length == len(f.last) && length > 0 {
		return f.last, nil
	}
	if _, err := io.CopyN(io.Discard, f.in, offset-f.offset); err != nil {
		return nil, err
	}
	if cap(f.last) < length {
		f.last = make([]byte, length)
	}
	f.last = f.last[:length]
	n, err := io.ReadFull(f.in, f.last)
	f.offset = offset + int64(n)
	return f.last[:n], err
}
