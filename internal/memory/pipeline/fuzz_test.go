package pipeline

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/godwit/godwit/internal/memory"
)

// kept is a store of single pages that checks its input.
type kept struct {
	t     testing.TB
	pages map[spot][]byte
}

func (k *kept) Put(run memory.Run, data []byte) error {
	size := memory.PageSize()
	if err := run.Check(); err != nil || !run.Zero && len(data) != int(run.Pages)*size {
		k.t.Errorf("put %+v with %d bytes: %v", run, len(data), err)
	}
	for i := range min(int(run.Pages), 1024) {
		page := make([]byte, size)
		if !run.Zero {
			copy(page, data[i*size:])
		}
		k.pages[spot{run.Task, run.Address + uint64(i*size)}] = page
	}
	return nil
}

func (k *kept) ReadPage(task memory.Task, address uint64, page []byte) (bool, error) {
	content := k.pages[spot{task, address}]
	copy(page, content)
	return content != nil, nil
}

func (k *kept) Forget(task memory.Task) error {
	for s := range k.pages {
		if s.task == task {
			delete(k.pages, s)
		}
	}
	return nil
}

// captured is a lane that keeps sent frames.
type captured struct{ frames [][]byte }

func (c *captured) Send(f []byte) error { c.frames = append(c.frames, bytes.Clone(f)); return nil }
func (c *captured) Push() error         { return nil }

// FuzzFrame gives a receiver arbitrary data of a peer.
func FuzzFrame(f *testing.F) {
	sender, err := NewSender(SenderConfig{})
	must(f, err)
	defer sender.Close()
	lane := &captured{}
	must(f, sender.AddLane(lane))
	size := memory.PageSize()
	page := make([]byte, 3*size)
	page[5], page[size], page[2*size+9] = 1, 2, 3
	must(f, sender.Put(memory.Run{Task: 1, Pages: 3}, page))
	must(f, sender.Put(memory.Run{Task: 2, Pages: 3}, page))
	must(f, sender.Put(memory.Run{Task: 2, Pages: 700, Zero: true}, nil))
	page[7]++
	must(f, sender.Put(memory.Run{Task: 1, Pages: 3}, page))
	must(f, sender.Forget(2))
	_, err = sender.Barrier(f.Context())
	must(f, err)
	for _, one := range lane.frames {
		f.Add(one[numberBytes:])
		for at := numberBytes; at+headerBytes < len(one); at += headerBytes {
			f.Add(one[at:])
		}
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		r, err := NewReceiver(ReceiverConfig{Pages: &kept{t, map[spot][]byte{}},
			Base: &kept{t, map[spot][]byte{}}})
		must(t, err)
		// The number is right, so that the frame is examined.
		err = r.Frame(append(binary.LittleEndian.AppendUint64(nil, 0), frame...))
		if err != nil && !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrMissing) {
			t.Errorf("%v", err)
		}
	})
}

// FuzzDelta: an encoded delta gives the new page, and any other does no harm.
func FuzzDelta(f *testing.F) {
	f.Add([]byte("abcdefgh"), []byte("x"), uint64(3))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 1}, []byte{1, 1}, uint64(1))
	f.Fuzz(func(t *testing.T, delta, content []byte, seed uint64) {
		random := rand.New(rand.NewPCG(seed, seed))
		old := make([]byte, 4096)
		for i := range old {
			old[i] = byte(random.Uint32())
		}
		now := bytes.Clone(old)
		if err := ApplyDelta(now, delta); err != nil && !errors.Is(err, ErrMalformed) {
			t.Error(err)
		}
		now = bytes.Clone(old)
		for i, b := range content {
			now[(i*i*7+int(seed%4096))%4096] = b
		}
		for _, limit := range []int{len(now) / 2, 2 * len(now)} {
			made, small := AppendDelta(nil, old, now, limit)
			if !small {
				continue
			}
			got := bytes.Clone(old)
			if err := ApplyDelta(got, made); err != nil || !bytes.Equal(got, now) || len(made) > limit {
				t.Errorf("a delta of %d bytes gives another page: %v", len(made), err)
			}
		}
	})
}

// FuzzClaims: accepted claims encode to the input.
func FuzzClaims(f *testing.F) {
	var seed bytes.Buffer
	must(f, EncodeClaim(&seed, 3, 1<<30, []Digest{{1, 2}, {}, {3, 4}}))
	f.Add(seed.Bytes())
	f.Fuzz(func(t *testing.T, input []byte) {
		var again bytes.Buffer
		err := DecodeClaims(bytes.NewReader(input),
			64, func(task memory.Task, address uint64, digests []Digest) error {
				return EncodeClaim(&again, task, address, digests)
			})
		if !bytes.HasPrefix(input, again.Bytes()) || err == nil && again.Len() != len(input) {
			t.Errorf("read %d bytes, encoded %d: %v", len(input), again.Len(), err)
		}
	})
}
