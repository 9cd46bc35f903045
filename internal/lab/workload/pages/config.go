package pages

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"

	"github.com/godwit/godwit/internal/lab/workload"
)

// Command is the hidden command of this program that runs the workload; Config.Args follow it.
const Command = "lab-pages"

// Kinds of memory, and orders of writing.
const (
	Private = "private" // anonymous
	Shared  = "shared"  // anonymous, shared: children and CRIU see it as shared memory
	Random  = "random"
	Cycle   = "cycle" // one page after the other, again and again
)

// maxPort is the highest port.
const maxPort = 1<<16 - 1

// Config describes the memory and its changes. Sizes are in bytes.
type Config struct {
	Size      int64  // of the memory
	Kind      string // Private if empty
	Hot       int64  // how much of it is written, from its beginning; 0: all
	Rate      int64  // bytes of pages written per second; 0: none
	Order     string // Random if empty
	Change    int    // bytes of a page that each write changes; 0: all
	Half      bool   // compressible to a half; otherwise incompressible
	Threads   int    // that share the memory and the rate; 0: one
	Check     int64  // bytes of pages checked per second, in addition to the written ones
	Processes int    // that share the memory copy-on-write; all but the first sleep. 0: one
	Pound     bool   // write at full speed, a word at a time, and report the count; nothing is checked
	// TCP port for questions (see Ask); 0: none. With a port, its threads measure how long they wait for
	// pages
	Listen int
}

// flags binds a Config to the flags of its command.
func (c *Config) flags() *flag.FlagSet {
	f := workload.Flags(Command)
	f.Int64Var(&c.Size, "size", c.Size, "")
	f.StringVar(&c.Kind, "kind", c.Kind, "")
	f.Int64Var(&c.Hot, "hot", c.Hot, "")
	f.Int64Var(&c.Rate, "rate", c.Rate, "")
	f.StringVar(&c.Order, "order", c.Order, "")
	f.IntVar(&c.Change, "change", c.Change, "")
	f.BoolVar(&c.Half, "half", c.Half, "")
	f.IntVar(&c.Threads, "threads", c.Threads, "")
	f.Int64Var(&c.Check, "check", c.Check, "")
	f.IntVar(&c.Processes, "processes", c.Processes, "")
	f.BoolVar(&c.Pound, "pound", c.Pound, "")
	f.IntVar(&c.Listen, "listen", c.Listen, "")
	return f
}

// Args returns the arguments with which this program becomes the workload.
func (c Config) Args() []string { return workload.Args(c.flags()) }

// parse parses the result of Args, without the command.
func parse(args []string) (Config, error) {
	var c Config
	if err := workload.Parse(c.flags(), args); err != nil {
		return c, err
	}
	c.fillIn()
	return c, c.check()
}

func (c *Config) fillIn() {
	if c.Kind == "" {
		c.Kind = Private
	}
	if c.Order == "" {
		c.Order = Random
	}
	if c.Hot == 0 {
		c.Hot = c.Size
	}
	if c.Change == 0 {
		c.Change = pageSize()
	}
	c.Threads, c.Processes = max(c.Threads, 1), max(c.Processes, 1)
}

func (c *Config) check() error {
	page := int64(pageSize())
	perThread := page * int64(c.Threads)
	switch {
	case c.Size <= 0 || c.Size%perThread != 0:
		return fmt.Errorf("size %d: must be a multiple of %d", c.Size, perThread)
	case c.Hot < perThread || c.Hot > c.Size:
		return fmt.Errorf("hot %d: must be from %d to the size", c.Hot, perThread)
	case c.Change < leastChange || pageSize()%c.Change != 0:
		return fmt.Errorf("change %d: must divide a page and be at least %d", c.Change, leastChange)
	case c.Kind != Private && c.Kind != Shared:
		return errors.New("kind: must be " + Private + " or " + Shared)
	case c.Order != Random && c.Order != Cycle:
		return errors.New("order: must be " + Random + " or " + Cycle)
	case c.Rate < 0 || c.Check < 0:
		return errors.New("rate and check: must not be negative")
	case c.Threads > maxThreads || c.Processes > maxProcesses:
		return errors.New("threads, processes: at most " + strconv.Itoa(maxThreads) + ", " +
			strconv.Itoa(maxProcesses))
	case c.Listen < 0 || c.Listen > maxPort:
		return fmt.Errorf("listen %d: must be a port", c.Listen)
	case c.Pound && c.Size&(c.Size-1) != 0:
		return fmt.Errorf("size %d: must be a power of two", c.Size)
	}
	return nil
}

const (
	leastChange  = 64
	maxThreads   = 64
	maxProcesses = 64
)

func pageSize() int { return os.Getpagesize() }
