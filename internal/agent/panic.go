package agent

import "github.com/godwit/godwit/internal/guard"

// logPanic writes the stack of a panic that a migration has failed by.
func (a *Agent) logPanic(err error) { guard.LogPanic(a.log, err) }

// guarded is do for a goroutine of its own, which nobody waits for: a panic is logged.
func (a *Agent) guarded(do func()) func() { return guard.Logged(a.log, do) }
