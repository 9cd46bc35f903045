package torture

import (
	"errors"
	"flag"
	"path/filepath"

	"github.com/godwit/godwit/internal/lab/workload"
)

// Command is the hidden command of this program that runs the workload; Config.Args follow it.
const Command = "lab-torture"

// Config describes the work.
type Config struct {
	Dir       string // absolute; may contain anything
	Seed      uint64
	Processes int
	Rate      int  // operations per second in each process; 0: no limit
	Tell      int  // a dot is printed after every so many operations; 0: never
	Locks     bool // also immutable and append-only files, which some file systems lack
	Reserve   bool // also reserved space that is never written
	// also names of the maximum length, which CRIU cannot restore for open and deleted files
	Long bool
}

// flags binds a Config to the flags of its command.
func (c *Config) flags() *flag.FlagSet {
	f := workload.Flags(Command)
	f.StringVar(&c.Dir, "dir", c.Dir, "")
	f.Uint64Var(&c.Seed, "seed", c.Seed, "")
	f.IntVar(&c.Processes, "processes", c.Processes, "")
	f.IntVar(&c.Rate, "rate", c.Rate, "")
	f.IntVar(&c.Tell, "tell", c.Tell, "")
	f.BoolVar(&c.Locks, "locks", c.Locks, "")
	f.BoolVar(&c.Reserve, "reserve", c.Reserve, "")
	f.BoolVar(&c.Long, "long", c.Long, "")
	return f
}

// Args returns the arguments with which this program becomes the workload.
func (c Config) Args() []string { return workload.Args(c.flags()) }

// parse parses the result of Args, without the command.
func parse(args []string) (Config, error) {
	c := Config{Processes: 1}
	if err := workload.Parse(c.flags(), args); err != nil {
		return c, err
	}
	switch {
	case !filepath.IsAbs(c.Dir):
		return c, errors.New("-dir must be absolute")
	case c.Processes < 1 || c.Processes > 100 || c.Rate < 0 || c.Tell < 0:
		return c, errors.New("-processes is 1 to 100, -rate and -tell are not negative")
	}
	return c, nil
}
