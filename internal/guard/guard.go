// Package guard contains panics: a goroutine of one migration that panics fails that migration with
// an error, and the agent and its other containers go on.
//
// The Go runtime ends the whole process when any goroutine panics and nothing recovers, so each
// goroutine that handles a peer's data or carries out a step begins here.
package guard

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
)

// Panic is the error that a panic became.
type Panic struct {
	Reason any
	Stack  []byte // of the goroutine that panicked; for the log, not for users
}

func (p *Panic) Error() string {
	return fmt.Sprintf("panic: %v; this is a bug of godwit, and the agent's log has the stack", p.Reason)
}

// Recover must be deferred directly. It stores a panic of the surrounding function in err.
func Recover(err *error) {
	if reason := recover(); reason != nil {
		*err = &Panic{Reason: reason, Stack: debug.Stack()}
	}
}

// Do returns do's error, or its panic as one.
func Do(do func() error) (err error) {
	defer Recover(&err)
	return do()
}

// Go runs do in a goroutine of its own. The channel has room for what Do returns, so nobody has to
// read it.
func Go(do func() error) chan error {
	ended := make(chan error, 1)
	go func() { ended <- Do(do) }()
	return ended
}

// Logged is do for a goroutine of its own, which nobody waits for: a panic is logged.
func Logged(log *slog.Logger, do func()) func() {
	return func() {
		LogPanic(log, Do(func() error {
			do()
			return nil
		}))
	}
}

// LogPanic logs the panic in err's chain with its stack, if there is one.
func LogPanic(log *slog.Logger, err error) {
	if stack := Stack(err); stack != "" {
		log.Error("panic; this is a bug of godwit", "error", err, "stack", stack)
	}
}

// Stack returns the stack of the panic in err's chain; empty if there is none.
func Stack(err error) string {
	var p *Panic
	if errors.As(err, &p) {
		return string(p.Stack)
	}
	return ""
}
