package postcopy

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/wire/stream"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// spot is one page of one task.
type spot struct {
	task    memory.Task
	address uint64
}

// spots lists the pages of maps in order.
func spots(maps []memory.TaskMap) []spot {
	var all []spot
	for _, m := range maps {
		for _, a := range m.Areas {
			for i := range a.Pages {
				all = append(all, spot{m.Task, a.Start + i*uint64(memory.PageSize())})
			}
		}
	}
	return all
}

func pagesOf(maps []memory.TaskMap) int {
	n := 0
	for _, m := range maps {
		for _, a := range m.Areas {
			n += int(a.Pages)
		}
	}
	return n
}

// randomMaps makes maps of about so many pages: large areas, small ones, some adjacent.
func randomMaps(random *rand.Rand, pages int) []memory.TaskMap {
	var maps []memory.TaskMap
	size := uint64(memory.PageSize())
	tasks := 1 + random.IntN(4)
	for i := range tasks {
		m := memory.TaskMap{Task: memory.Task(1 + i*7 + random.IntN(7))}
		at := uint64(random.IntN(1000)) * size
		for n := 0; n < pages/tasks; {
			if random.IntN(8) > 0 {
				at += uint64(1+random.IntN(20)) * size
			}
			if random.IntN(10) == 0 {
				at += 1 << 36
			}
			count := 1 + random.IntN(6)
			if random.IntN(4) == 0 {
				count = 1 + random.IntN(600)
			}
			m.Areas = append(m.Areas, memory.Area{Start: at, Pages: uint64(count)})
			at += uint64(count) * size
			n += count
		}
		maps = append(maps, m)
	}
	return maps
}

// frozen is the source's memory: each page has its own content, and some are zero.
type frozen struct {
	may   map[spot]bool // nil: all
	fail  atomic.Bool
	pages atomic.Int64 // read so far
}

func (f *frozen) Read(task memory.Task, address uint64, buffer []byte) error {
	if f.fail.Load() {
		return fmt.Errorf("no such process")
	}
	size := memory.PageSize()
	for i := 0; i < len(buffer); i += size {
		if at := (spot{task, address + uint64(i)}); f.may != nil && !f.may[at] {
			return fmt.Errorf("%+v is not mapped", at)
		}
		fillPage(buffer[i:i+size], task, address+uint64(i))
		f.pages.Add(1)
	}
	return nil
}

func fillPage(page []byte, task memory.Task, address uint64) {
	clear(page)
	number := address / uint64(len(page))
	if number%11 == 3 {
		return
	}
	binary.LittleEndian.PutUint32(page, uint32(task))
	binary.LittleEndian.PutUint64(page[number%7*512:], address^uint64(task)<<48)
	page[len(page)-1] = byte(number)
}

// container receives remote pages: it checks each, and requests some.
type container struct {
	t testing.TB

	mu     sync.Mutex
	maps   []memory.TaskMap
	here   map[spot]bool
	needed int // pages
	faults chan memory.RemoteFault
	full   chan struct{} // closed when everything is here
	fail   error         // of Put
	puts   atomic.Int32  // at the same time
	waits  map[spot]chan struct{}
}

func newContainer(t testing.TB, maps []memory.TaskMap) *container {
	c := &container{
		t: t, maps: maps, here: map[spot]bool{}, needed: pagesOf(maps),
		faults: make(chan memory.RemoteFault, 1<<13),
		full:   make(chan struct{}), waits: map[spot]chan struct{}{},
	}
	for _, s := range spots(maps) {
		c.here[s] = false
	}
	if c.needed == 0 {
		close(c.full)
	}
	return c
}

func (c *container) Missing() []memory.TaskMap { return c.maps }

func (c *container) Next(ctx context.Context) (memory.RemoteFault, error) {
	select {
	case w := <-c.faults:
		return w, nil
	case <-c.full:
		return memory.RemoteFault{}, io.EOF
	case <-ctx.Done():
		return memory.RemoteFault{}, ctx.Err()
	}
}

func (c *container) Put(run memory.Run, data []byte) error {
	if c.puts.Add(1) != 1 {
		c.t.Error("two put at the same time")
	}
	defer c.puts.Add(-1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fail != nil {
		return c.fail
	}
	size := memory.PageSize()
	want := make([]byte, size)
	zeros := make([]byte, size)
	for i := range int(run.Pages) {
		at := spot{run.Task, run.Address + uint64(i*size)}
		here, remote := c.here[at]
		if !remote || here {
			c.t.Errorf("page %+v came, remote: %t, here: %t", at, remote, here)
			return nil
		}
		got := zeros
		if !run.Zero {
			got = data[i*size : (i+1)*size]
		}
		if fillPage(want, at.task, at.address); !bytes.Equal(got, want) {
			c.t.Errorf("page %+v is wrong", at)
		}
		c.here[at] = true
		c.needed--
		if w := c.waits[at]; w != nil {
			close(w)
			delete(c.waits, at)
		}
	}
	if c.needed == 0 {
		close(c.full)
	}
	return nil
}

func (c *container) GiveUp(context.Context, bool) error { return nil }
func (c *container) Close() error                       { return nil }

// want requests a page, and returns a channel that is closed when it is here.
func (c *container) want(s spot) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.waits[s]
	if w == nil {
		w = make(chan struct{})
		if c.here[s] {
			close(w)
			return w
		}
		c.waits[s] = w
		c.faults <- memory.RemoteFault{Task: s.task, Address: s.address}
	}
	return w
}

func (c *container) missing() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.needed
}

// sessions makes a connection over loopback and a session at each end.
func sessions(t testing.TB, o stream.Options) (*stream.Session, *stream.Session) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer listener.Close()
	a, err := net.Dial("tcp", listener.Addr().String())
	must(t, err)
	b, err := listener.Accept()
	must(t, err)
	type answered struct {
		session *stream.Session
		err     error
	}
	answer := make(chan answered, 1)
	go func() {
		s, _, err := stream.Answer(context.Background(), b, func(stream.Hello) error { return nil }, o)
		answer <- answered{s, err}
	}()
	opened, err := stream.Open(context.Background(), a, stream.Hello{}, o)
	must(t, err)
	got := <-answer
	must(t, got.err)
	return opened, got.session
}

// linked has both connections, at both ends.
type linked struct {
	sourceUrgent, sourcePush *stream.Session
	targetUrgent, targetPush *stream.Session
}

func link(t testing.TB) linked {
	t.Helper()
	var l linked
	l.sourceUrgent, l.targetUrgent = sessions(t, stream.Options{Workers: 1})
	l.sourcePush, l.targetPush = sessions(t, stream.Options{Workers: 1})
	t.Cleanup(l.cut)
	return l
}

func (l linked) cut() {
	for _, s := range []*stream.Session{l.sourceUrgent, l.targetUrgent, l.sourcePush, l.targetPush} {
		s.Close()
	}
}

// noLeaks checks that no goroutine of this package or of streams is left at the end of the test.
func noLeaks(t testing.TB) {
	t.Helper()
	t.Cleanup(func() {
		deadline := time.Now().Add(10 * time.Second)
		for {
			buffer := make([]byte, 1<<20)
			all := string(buffer[:runtime.Stack(buffer, true)])
			count := strings.Count(all, "postcopy.(*serving)") + strings.Count(all, "postcopy.(*running)") +
				strings.Count(all, "postcopy.together") +
				strings.Count(all, "stream.(*writer).send") + strings.Count(all, "stream.(*reader)")
			if count == 0 {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("goroutines are left:\n%s", all)
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
}

// both runs server and client over a link, and returns both errors.
func both(ctx context.Context, s *Server, c *Client, l linked) (source, target error) {
	var wait sync.WaitGroup
	wait.Go(func() { source = s.Serve(ctx, l.sourceUrgent, l.sourcePush) })
	wait.Go(func() { target = c.Run(ctx, l.targetUrgent, l.targetPush) })
	wait.Wait()
	return source, target
}
