package pipeline

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/memory"
)

// TestTable compares the table with a map while contents come and go, many of which begin their search at
// the same slot.
func TestTable(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	table := newTable(Digest{9, 9})
	want := map[location]Digest{}
	for step := range 60000 {
		l := location{task: memory.Task(1 + random.IntN(3)), base: random.IntN(4) == 0,
			address: uint64(random.IntN(3000)) * table.size}
		d := Digest{uint64(random.IntN(40)) << 6 * uint64(random.IntN(2)), uint64(random.IntN(100))}
		if random.IntN(4) == 0 {
			d[0] = random.Uint64()
		}
		id, err := table.at(l)
		must(t, err)
		if table.where(id) != l {
			t.Fatalf("page %d is at %+v, not %+v", id, table.where(id), l)
		}
		table.set(id, d)
		want[l] = d
		if step%5000 == 4999 {
			table.forget(func(p place) bool { return p.task == 2 && !p.base }, func(pageID) {})
			for l := range want {
				if l.task == 2 && !l.base {
					delete(want, l)
				}
			}
		}
	}
	listed := 0
	for _, entry := range table.index {
		if entry == 0 {
			continue
		}
		listed++
		l := table.where(pageID(entry - 1))
		found, ok := table.find(want[l])
		if !ok || want[table.where(found)] != want[l] || !table.has(l, want[l]) {
			t.Fatalf("the content of %+v is not found", l)
		}
	}
	if listed != table.used || listed < 1000 {
		t.Errorf("%d are listed, counted were %d", listed, table.used)
	}
}

// TestCache: pages that are written again and again stay, however many others come.
func TestCache(t *testing.T) {
	size := memory.PageSize()
	c := newCache(int64(100 * size))
	page := func(id pageID) []byte {
		content := make([]byte, size)
		binary.LittleEndian.PutUint32(content, uint32(id))
		return content
	}
	round := func(first, last pageID, again bool) (hits int) {
		for id := first; id < last; id++ {
			if old := c.get(id); old != nil {
				hits++
				if binary.LittleEndian.Uint32(old) != uint32(id) {
					t.Fatalf("page %d has the content of another", id)
				}
			}
			c.keep(id, page(id), again, false)
		}
		c.next()
		return hits
	}
	round(0, 1000, false)
	for n := range 5 {
		if hits := round(500, 650, true); n > 0 && hits != 100 {
			t.Errorf("round %d: %d of 100 pages with room were there", n, hits)
		}
	}
	round(0, 0, true)
	round(0, 0, true)
	round(900, 950, true) // the others were not written for a while
	if hits := round(900, 950, true); hits != 50 {
		t.Errorf("%d of 50 new pages were there", hits)
	}
	if len(c.slots) > 100 || len(c.owner) > 100 {
		t.Errorf("it has %d pages", len(c.slots))
	}
}

// stuck is a lane that is full until it is released, and then fails.
type stuck struct {
	entered chan struct{}
	leave   chan error
}

func (s *stuck) Send([]byte) error {
	s.entered <- struct{}{}
	return <-s.leave
}
func (s *stuck) Push() error { return nil }

// TestLanePushesBack: a sender waits for its lanes with little buffered data, and ends when one lane does.
func TestLanePushesBack(t *testing.T) {
	for _, how := range []string{"the lane fails", "closed", "failed"} {
		t.Run(how, func(t *testing.T) {
			s, err := NewSender(SenderConfig{})
			must(t, err)
			lane := &stuck{make(chan struct{}, 1), make(chan error, 1)}
			must(t, s.AddLane(lane))
			random := rand.New(rand.NewPCG(3, 4))
			ended := make(chan error)
			go func() {
				for n := uint64(0); ; n++ {
					page := make([]byte, memory.PageSize())
					binary.LittleEndian.PutUint64(page, random.Uint64())
					if err := s.Put(memory.Run{Task: 1, Address: n * uint64(len(page)), Pages: 1},
						page); err != nil {
						ended <- err
						return
					}
				}
			}()
			<-lane.entered
			broken := errors.New("broken")
			switch how {
			case "closed":
				s.Close()
				broken = ErrClosed
			case "failed":
				s.Fail(broken)
			default:
				lane.leave <- broken
			}
			if err := <-ended; !errors.Is(err, broken) {
				t.Errorf("Put: %v", err)
			}
			if n := s.Stats().ContentPages * uint64(memory.PageSize()); n > 2*framesPerLane*FrameBytes {
				t.Errorf("%d bytes were taken while nothing left", n)
			}
			if err := s.AddLane(lane); !errors.Is(err, broken) {
				t.Errorf("AddLane: %v", err)
			}
			lane.leave <- nil // for those that still wait
		})
	}
}

// panicking is a lane whose connection panics.
type panicking struct{}

func (panicking) Send([]byte) error { panic("on purpose") }
func (panicking) Push() error       { return nil }

// TestPanicOfALaneEndsTheSender, and not the program.
func TestPanicOfALaneEndsTheSender(t *testing.T) {
	s, err := NewSender(SenderConfig{})
	must(t, err)
	defer s.Close()
	must(t, s.AddLane(panicking{}))
	var panicked *guard.Panic
	if _, err := s.Barrier(t.Context()); !errors.As(err, &panicked) {
		t.Errorf("Barrier: %v, want the panic", err)
	}
}

// TestBarrierIsCancelled cancels a barrier while a lane is full.
func TestBarrierIsCancelled(t *testing.T) {
	s, err := NewSender(SenderConfig{})
	must(t, err)
	defer s.Close()
	lane := &stuck{make(chan struct{}, 1), make(chan error, 1)}
	must(t, s.AddLane(lane))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-lane.entered
		cancel()
	}()
	if _, err := s.Barrier(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Barrier: %v", err)
	}
	lane.leave <- nil
}

// TestReceiverRefuses: frames that no sender makes are refused.
func TestReceiverRefuses(t *testing.T) {
	frame := func(number uint64, records ...record) []byte {
		b := binary.LittleEndian.AppendUint64(nil, number)
		for _, r := range records {
			b = r.append(b)
		}
		return b
	}
	for name, frames := range map[string][][]byte{
		"no number":     {{1, 2, 3}},
		"twice":         {frame(0), frame(0)},
		"unknown kind":  {frame(0, record{kind: kindsEnd, task: 1, pages: 1})},
		"no task":       {frame(0, record{kind: kindZero, pages: 1})},
		"no pages":      {frame(0, record{kind: kindZero, task: 1})},
		"no content":    {frame(0, record{kind: kindContent, task: 1, pages: 1})},
		"no source":     {frame(0, record{kind: kindCopy, task: 1, pages: 1})},
		"no delta":      {frame(0, record{kind: kindDelta, task: 1, pages: 1})},
		"bad barrier":   {frame(0, record{kind: kindBarrier, task: 1})},
		"bad forget":    {frame(0, record{kind: kindForget, task: 1, pages: 1})},
		"half a header": {frame(0, record{kind: kindBarrier})[:20]},
		"of itself": {append(frame(0, record{kind: kindCopy, task: 1, pages: 2}),
			append(binary.LittleEndian.AppendUint64([]byte{1, 0, 0, 0}, uint64(memory.PageSize())),
				make([]byte, 8)...)...)},
	} {
		r, err := NewReceiver(ReceiverConfig{Pages: &kept{t, map[spot][]byte{}}})
		must(t, err)
		for i, f := range frames {
			err = r.Frame(f)
			if i < len(frames)-1 {
				must(t, err)
			}
		}
		if !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
		if err := r.Complete(); err == nil {
			t.Errorf("%s: it is complete", name)
		}
	}
}

// TestReceiverFails: the receiver fails while others wait for their turn.
func TestReceiverFails(t *testing.T) {
	r, err := NewReceiver(ReceiverConfig{Pages: &kept{t, map[spot][]byte{}}})
	must(t, err)
	waits := make(chan error)
	for n := range uint64(3) {
		go func() { waits <- r.Frame(binary.LittleEndian.AppendUint64(nil, n+1)) }()
	}
	broken := errors.New("broken")
	if err := r.Fail(broken); err != broken {
		t.Error(err)
	}
	for range 3 {
		if err := <-waits; !errors.Is(err, broken) {
			t.Error(err)
		}
	}
}
