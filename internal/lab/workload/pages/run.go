package pages

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// Ready is the line that the workload prints when its memory is filled.
const Ready = "ready"

// Result is the workload's output, as JSON, when it is asked to end (SIGTERM) and has checked all pages
// once more.
type Result struct {
	Pages   int64 `json:"pages"`
	Written int64 `json:"written"`
	Checked int64 `json:"checked"`
	Bad     int64 `json:"bad"`
}

// Run is the workload. It returns when it is asked to end, with an error if a page had a wrong content.
func Run(args []string, out io.Writer) error {
	config, err := parse(args)
	if err != nil {
		return fmt.Errorf("%s: %w", Command, err)
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	memory, err := allocate(config)
	if err != nil {
		return err
	}
	if config.Pound {
		return pound(memory, out, end)
	}
	w := newWorld(config, memory, out)
	for _, p := range w.parts {
		p.fill()
	}
	if err := w.fork(); err != nil {
		return err
	}
	closeListener, err := w.listen()
	if err != nil {
		return err
	}
	fmt.Fprintln(out, Ready)
	w.run(end)
	closeListener()
	return w.finish()
}

func allocate(c Config) ([]byte, error) {
	flags := unix.MAP_ANON | unix.MAP_PRIVATE
	if c.Kind == Shared {
		flags = unix.MAP_ANON | unix.MAP_SHARED
	}
	memory, err := unix.Mmap(-1, 0, int(c.Size), unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return nil, fmt.Errorf("%s: %d bytes of memory: %w", Command, c.Size, err)
	}
	return memory, nil
}

// world is all the memory.
type world struct {
	config   Config
	parts    []*part
	children []int
	tally    *tally
	stopped  chan struct{} // closed when the parts have stopped
}

func newWorld(c Config, memory []byte, out io.Writer) *world {
	w := &world{config: c, tally: &tally{out: out}, stopped: make(chan struct{})}
	size, hot := len(memory)/c.Threads, int(c.Hot)/c.Threads
	for i := range c.Threads {
		w.parts = append(w.parts, &part{
			config: c, form: form{part: c.Change, half: c.Half}, tally: w.tally,
			memory: memory[i*size : (i+1)*size], first: uint64(i * size / pageSize()),
			written: make([]uint64, size/pageSize()), hot: uint64(hot / pageSize()), chance: uint64(i) << 32,
			asked: make(chan func()),
		})
		if c.Listen > 0 {
			w.parts[i].waits = &waits{}
		}
	}
	return w
}

// fork makes the processes that share the memory copy-on-write.
func (w *world) fork() error {
	for range w.config.Processes - 1 {
		pid, err := kernel.ForkSleeper()
		if err != nil {
			return fmt.Errorf("%s: %w", Command, err)
		}
		w.children = append(w.children, pid)
	}
	return nil
}

// run lets all threads work until a signal comes.
func (w *world) run(end <-chan os.Signal) {
	var working sync.WaitGroup
	for _, p := range w.parts {
		working.Go(func() { p.run(w.stopped) })
	}
	<-end
	close(w.stopped)
	working.Wait()
}

// finish checks everything and prints the result.
func (w *world) finish() error {
	for _, p := range w.parts {
		p.checkFirst(uint64(len(p.written)))
	}
	failed := w.checkChildren()
	result := w.result()
	failed = errors.Join(failed, json.NewEncoder(w.tally.out).Encode(result))
	if result.Bad > 0 {
		failed = errors.Join(failed, fmt.Errorf("%s: %d of %d pages were not what they had to be", Command,
			result.Bad, result.Checked))
	}
	return failed
}

// result returns the counts and findings so far.
func (w *world) result() Result {
	pages := int64(0)
	for _, p := range w.parts {
		pages += int64(len(p.written))
	}
	return Result{Pages: pages, Written: w.tally.Written.Load(), Checked: w.tally.Checked.Load(),
		Bad: w.tally.Bad.Load()}
}
