package tree

import (
	"errors"
	"flag"
	"fmt"
	"path/filepath"

	"github.com/godwit/godwit/internal/lab/workload"
)

// Command is the hidden command of this program that runs the workload; Config.Args follow it.
const Command = "lab-tree"

// Config describes the files and their changes.
type Config struct {
	Dir     string // absolute; files of an earlier run with the same settings are kept
	Files   int
	Size    int64 // of each, in bytes
	Rate    int   // files rewritten per second; 0: none
	Replace bool  // a rewritten file is a new one, which replaces the old one
	Listen  int   // TCP port for questions (see Ask); 0: none
	Verify  bool  // only check all files once, report and end
}

const (
	maxFiles = 10_000_000
	maxRate  = 100_000
	maxPort  = 1<<16 - 1
)

// flags binds a Config to the flags of its command.
func (c *Config) flags() *flag.FlagSet {
	f := workload.Flags(Command)
	f.StringVar(&c.Dir, "dir", c.Dir, "")
	f.IntVar(&c.Files, "files", c.Files, "")
	f.Int64Var(&c.Size, "size", c.Size, "")
	f.IntVar(&c.Rate, "rate", c.Rate, "")
	f.BoolVar(&c.Replace, "replace", c.Replace, "")
	f.IntVar(&c.Listen, "listen", c.Listen, "")
	f.BoolVar(&c.Verify, "verify", c.Verify, "")
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
	return c, c.check()
}

func (c Config) check() error {
	switch {
	case !filepath.IsAbs(c.Dir):
		return fmt.Errorf("directory %q: must be an absolute path", c.Dir)
	case c.Files < 1 || c.Files > maxFiles:
		return fmt.Errorf("%d files: must be from 1 to %d", c.Files, maxFiles)
	case c.Size < 1:
		return errors.New("size: must be positive")
	case c.Rate < 0 || c.Rate > maxRate:
		return fmt.Errorf("rate %d: must be from 0 to %d", c.Rate, maxRate)
	case c.Listen < 0 || c.Listen > maxPort:
		return fmt.Errorf("listen %d: must be a port", c.Listen)
	}
	return nil
}
