package copies

import (
	"bytes"
	"math/rand/v2"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/fsys"
	"github.com/godwit/godwit/internal/files/records"
)

// model is a file's content as a slice, and its holes.
type model struct {
	content []byte
	data    []bool // for each block
}

const modelBlock = 4096

func (m *model) set(offset int, piece []byte) {
	copy(m.content[offset:], piece)
	for at := offset; at < offset+len(piece); at++ {
		m.data[at/modelBlock] = true
	}
}

func newModel(blocks int) *model {
	return &model{content: make([]byte, blocks*modelBlock), data: make([]bool, blocks)}
}

// grown returns a file as a first round writes it.
func grown(random *rand.Rand, w *records.RoundWriter, e *fsys.Entry, blocks int) *model {
	m := newModel(blocks)
	e.Size = int64(len(m.content))
	w.Other(e)
	for at := 0; at < blocks; {
		n := min(1+random.IntN(5), blocks-at)
		if random.IntN(2) == 0 {
			w.Hole(int64(n * modelBlock))
		} else {
			piece := make([]byte, n*modelBlock)
			fillRandom(random, piece)
			w.Bytes(piece)
			m.set(at*modelBlock, piece)
		}
		at += n
	}
	w.EndContent()
	return m
}

func fillRandom(random *rand.Rand, p []byte) {
	for i := range p {
		p[i] = byte(random.Uint32())
	}
}

// changed returns a file that a further round changes by every kind of operation.
func changed(random *rand.Rand, w *records.RoundWriter, e *fsys.Entry, before *model, copies bool) *model {
	blocks := 1 + random.IntN(60)
	m := newModel(blocks)
	e.Size = int64(len(m.content))
	kind := records.InPlace
	if copies {
		kind = records.WithCopies
	}
	w.Change(e, kind)
	for at := 0; at < blocks && random.IntN(15) > 0; {
		n := min(1+random.IntN(8), blocks-at)
		switch random.IntN(4) {
		case 0:
			w.Hole(int64(n * modelBlock))
		case 1:
			piece := make([]byte, n*modelBlock)
			fillRandom(random, piece)
			w.Bytes(piece)
			m.set(at*modelBlock, piece)
		case 2:
			n = min(n, len(before.data)-at)
			if n <= 0 {
				continue
			}
			w.Keep(int64(n * modelBlock))
			m.take(at, before, at, n)
		case 3:
			if !copies {
				continue
			}
			from := random.IntN(len(before.data))
			n = min(n, len(before.data)-from)
			w.Copy(int64(from*modelBlock), int64(n*modelBlock))
			m.take(at, before, from, n)
		}
		at += n
	}
	w.EndContent()
	return m
}

func (m *model) take(at int, before *model, from, n int) {
	copy(m.content[at*modelBlock:], before.content[from*modelBlock:(from+n)*modelBlock])
	copy(m.data[at:], before.data[from:from+n])
}

func (m *model) compare(t *testing.T, path string) {
	t.Helper()
	content, err := os.ReadFile(path)
	check(t, err)
	if !bytes.Equal(content, m.content) {
		t.Errorf("%s: content differs (%d bytes, want %d)", path, len(content), len(m.content))
	}
	fd := must(unix.Open(path, unix.O_RDONLY, 0))
	defer unix.Close(fd)
	for i, want := range m.data {
		start, _, err := fsys.NextData(fd, int64(i*modelBlock), int64((i+1)*modelBlock))
		check(t, err)
		if got := start == int64(i*modelBlock); got != want {
			t.Errorf("%s: block %d of %d is data: %v, want %v", path, i, len(m.data), got, want)
			return
		}
	}
}

func TestContentIsChangedByAnySequenceOfOperations(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 1))
		s := newStagehand(t, files.Limits{})
		one, two := aFile("one", ""), aFile("two", "")
		two.Links = 5
		var models [2]*model
		s.round(func(w *records.RoundWriter) {
			models[0] = grown(random, w, one, 1+random.IntN(50))
			models[1] = grown(random, w, two, 1+random.IntN(50))
			w.Link("other", 5)
			w.Leave(aDirectory(50))
		})
		for range 4 {
			s.round(func(w *records.RoundWriter) {
				models[0] = changed(random, w, one, models[0], random.IntN(2) == 0)
				models[1] = changed(random, w, two, models[1], random.IntN(2) == 0)
				w.Up()
			})
			wantTimes(t, s.at("one"), 1)
			wantTimes(t, s.at("other"), 1)
			models[0].compare(t, s.at("one"))
			models[1].compare(t, s.at("two"))
		}
		s.last()
		models[1].compare(t, s.at("other"))
		wantTimes(t, s.dir, 50)
		if left, err := os.ReadDir(s.dir); err != nil || len(left) != 3 {
			t.Fatalf("left: %v, %v", left, err)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
