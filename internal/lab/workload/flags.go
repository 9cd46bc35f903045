package workload

import (
	"flag"
	"fmt"
	"io"
)

// Flags returns the flags of a hidden command of this program that runs a workload.
func Flags(command string) *flag.FlagSet {
	f := flag.NewFlagSet(command, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	return f
}

// Args returns the arguments with which this program becomes the workload: the command, and each flag with
// its value.
func Args(f *flag.FlagSet) []string {
	args := []string{f.Name()}
	f.VisitAll(func(one *flag.Flag) { args = append(args, "-"+one.Name+"="+one.Value.String()) })
	return args
}

// Parse parses the result of Args, without the command.
func Parse(f *flag.FlagSet, args []string) error {
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return nil
}
