package pipeline

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/godwit/godwit/internal/memory"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// lane gives frames to a receiver from its own goroutine, some time later.
type lane struct {
	receiver *Receiver
	frames   chan []byte
	wait     sync.WaitGroup

	mu  sync.Mutex
	err error
}

func newLane(r *Receiver) *lane {
	l := &lane{receiver: r, frames: make(chan []byte, 8)}
	go func() {
		for f := range l.frames {
			if err := l.receiver.Frame(f); err != nil {
				l.mu.Lock()
				l.err = err
				l.mu.Unlock()
			}
			l.wait.Done()
		}
	}()
	return l
}

func (l *lane) Send(f []byte) error {
	l.wait.Add(1)
	l.frames <- bytes.Clone(f)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *lane) Push() error {
	l.wait.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// moved is a container's memory during a move: the source's pages, and the target's.
type moved struct {
	t       testing.TB
	key     Key
	random  *rand.Rand
	source  map[memory.Task]map[uint64][]byte
	dirty   map[memory.Task]map[uint64]bool
	sender  *Sender
	store   *memory.Store
	target  *Receiver
	barrier uint64
	missing []memory.TaskMap
}

func newMoved(t testing.TB, seed uint64, lanes int, config SenderConfig, base PageReader) *moved {
	key, err := NewKey()
	must(t, err)
	config.Key = key
	m := &moved{
		t: t, key: key, random: rand.New(rand.NewPCG(seed, 7)), source: map[memory.Task]map[uint64][]byte{},
		dirty: map[memory.Task]map[uint64]bool{},
	}
	m.store, err = memory.NewStore(1 << 30)
	must(t, err)
	t.Cleanup(func() { must(t, m.store.Close()) })
	m.sender, err = NewSender(config)
	must(t, err)
	t.Cleanup(m.sender.Close)
	m.target, err = NewReceiver(ReceiverConfig{
		Key: key, Pages: m.store, Base: base,
		Barrier: func(n uint64, missing []memory.TaskMap) error {
			m.barrier, m.missing = n, missing
			return nil
		},
	})
	must(t, err)
	for range lanes {
		l := newLane(m.target)
		t.Cleanup(func() { close(l.frames) })
		must(t, m.sender.AddLane(l))
	}
	return m
}

// write changes a page at the source.
func (m *moved) write(task memory.Task, page int, content []byte) {
	if m.source[task] == nil {
		m.source[task], m.dirty[task] = map[uint64][]byte{}, map[uint64]bool{}
	}
	address := uint64(page * memory.PageSize())
	m.source[task][address] = bytes.Clone(content)
	m.dirty[task][address] = true
}

func (m *moved) any(task memory.Task, pages int) []byte {
	address := uint64(m.random.IntN(pages) * memory.PageSize())
	if p := m.source[task][address]; p != nil {
		return bytes.Clone(p)
	}
	return make([]byte, memory.PageSize())
}

func (m *moved) randomPage() []byte {
	page := make([]byte, memory.PageSize())
	for i := 0; i < len(page); i += 8 {
		page[i], page[i+1], page[i+5] = byte(m.random.Uint32()), byte(m.random.Uint32()),
			byte(m.random.Uint32())
	}
	return page
}

// round sends dirty pages, in runs, and waits until they are there.
func (m *moved) round() {
	m.t.Helper()
	size := uint64(memory.PageSize())
	for _, task := range sorted(m.dirty) {
		addresses := sorted(m.dirty[task])
		for len(addresses) > 0 {
			n := 1
			zero := isZero(m.source[task][addresses[0]])
			data := bytes.Clone(m.source[task][addresses[0]])
			for n < len(addresses) && n < memory.MaxRunPages && addresses[n] == addresses[0]+uint64(n)*size &&
				isZero(m.source[task][addresses[n]]) == zero && m.random.IntN(20) > 0 {
				data = append(data, m.source[task][addresses[n]]...)
				n++
			}
			if zero {
				data = nil
			}
			must(m.t, m.sender.Put(memory.Run{Task: task, Address: addresses[0], Pages: uint32(n),
				Zero: zero}, data))
			addresses = addresses[n:]
		}
		clear(m.dirty[task])
	}
	number, err := m.sender.Barrier(m.t.Context())
	must(m.t, err)
	if m.barrier != number {
		m.t.Fatalf("the receiver is at barrier %d after barrier %d", m.barrier, number)
	}
}

// again marks missing pages as dirty.
func (m *moved) again() {
	must(m.t, m.sender.Missing(m.missing))
	for _, one := range m.missing {
		for _, area := range one.Areas {
			for i := range area.Pages {
				m.dirty[one.Task][area.Start+i*uint64(memory.PageSize())] = true
			}
		}
	}
}

// compare checks that the target has the same pages as the source.
func (m *moved) compare() {
	m.t.Helper()
	must(m.t, m.target.Complete())
	page := make([]byte, memory.PageSize())
	for task, pages := range m.source {
		for address, want := range pages {
			there, err := m.store.ReadPage(task, address, page)
			must(m.t, err)
			if !there || !bytes.Equal(page, want) {
				m.t.Fatalf("the page at %#x of task %d is wrong (there: %t)", address, task, there)
			}
		}
	}
}

func isZero(page []byte) bool { return bytes.Count(page, []byte{0}) == len(page) }
