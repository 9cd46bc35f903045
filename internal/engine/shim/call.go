package shim

import (
	"slices"
	"strings"
)

// call is an engine's call of its runtime: runc's command line, of which this program must parse only as
// much as it changes (containerd/go-runc makes the command line; conmon does for Podman).
type call struct {
	before  []string // global flags
	command string
	after   []string // flags of the command, and the id last
}

// Flags before the command whose value is the next argument.
var globalsWithValue = []string{"--root", "--log", "--log-format", "--criu", "--rootless"}

// parseCall parses a command line, without the program.
func parseCall(args []string) call {
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case slices.Contains(globalsWithValue, arg):
			i++
		case !strings.HasPrefix(arg, "-"):
			return call{before: args[:i], command: arg, after: args[i+1:]}
		}
	}
	return call{before: args}
}

// id of the container; "" for commands without one. It is the last argument of the commands that matter
// here, except for a signal.
func (c call) id() string {
	if last := len(c.after) - 1; c.command == "kill" && last > 0 && !strings.HasPrefix(c.after[last-1], "-") {
		return c.after[last-1]
	}
	if len(c.after) == 0 || strings.HasPrefix(c.after[len(c.after)-1], "-") {
		return ""
	}
	return c.after[len(c.after)-1]
}

// flag returns the value of a flag of the command.
func (c call) flag(name string) string {
	for i, arg := range c.after {
		if value, found := strings.CutPrefix(arg, name+"="); found {
			return value
		}
		if arg == name && i+1 < len(c.after) {
			return c.after[i+1]
		}
	}
	return ""
}

// has reports whether a flag without a value is given.
func (c call) has(name string) bool { return slices.Contains(c.after, name) }
