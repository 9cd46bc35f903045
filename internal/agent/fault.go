package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/godwit/godwit/internal/migration"
)

// FaultKind is what goes wrong.
type FaultKind string

// The kinds of faults.
const (
	FaultKill  FaultKind = "kill"  // the agent is killed, at once
	FaultFail  FaultKind = "fail"  // the step fails
	FaultPause FaultKind = "pause" // the step waits until Reached is removed
	FaultPanic FaultKind = "panic" // the step panics
)

// Fault is something that goes wrong at one point of a migration. Tests compose faults; they are
// files, so that one can be set while the agent runs. Each happens once. An agent that was not
// started with Config.Faults has none.
type Fault struct {
	Side string // source or target
	Step string // or undo
	When string // before or after
}

func (f Fault) path(runDir string) string {
	return filepath.Join(runDir, "faults", f.Side+"-"+f.Step+"-"+f.When)
}

// Reached is the file that says that the fault has happened.
func (f Fault) Reached(runDir string) string { return f.path(runDir) + ".reached" }

// Set makes the fault happen when an agent with this run directory comes to it. That it has
// happened before does not count any more.
func (f Fault) Set(runDir string, kind FaultKind) error {
	if err := f.Clear(runDir); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(f.path(runDir)), 0o700); err != nil {
		return fmt.Errorf("set a fault: %w", err)
	}
	if err := os.WriteFile(f.path(runDir), []byte(kind), 0o600); err != nil {
		return fmt.Errorf("set a fault: %w", err)
	}
	return nil
}

// Clear takes the fault back, and ends a pause.
func (f Fault) Clear(runDir string) error {
	for _, path := range []string{f.path(runDir), f.Reached(runDir)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("clear a fault: %w", err)
		}
	}
	return nil
}

// errFault is what a step with FaultFail returns.
var errFault = errors.New("failed on purpose, by a fault that was set")

// happen does what was asked for at this point.
func (f Fault) happen(ctx context.Context, runDir string) error {
	kind, err := os.ReadFile(f.path(runDir))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = os.Rename(f.path(runDir), f.Reached(runDir))
	}
	if err != nil {
		return fmt.Errorf("fault: %w", err)
	}
	switch FaultKind(strings.TrimSpace(string(kind))) {
	case FaultKill:
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			return err
		}
		select {} // The signal ends this process.
	case FaultFail:
		return errFault
	case FaultPanic:
		panic("on purpose, by a fault that was set")
	case FaultPause:
		return pause(ctx, f.Reached(runDir))
	}
	return fmt.Errorf("fault of unknown kind %.20q", kind)
}

// pause waits until a file is removed.
func pause(ctx context.Context, file string) error {
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for {
		if _, err := os.Lstat(file); errors.Is(err, os.ErrNotExist) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-poll.C:
		}
	}
}

// fault makes happen what a test asked for at a point of a migration.
func (a *Agent) fault(ctx context.Context, side migration.Side, step, when string) error {
	if !a.config.Faults {
		return nil
	}
	return Fault{Side: string(side), Step: step, When: when}.happen(ctx, a.config.RunDir)
}
