package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// FaultKind is what goes wrong.
type FaultKind string

// The kinds of faults.
const (
	FaultKill  FaultKind = "kill"  // the agent is killed, at once
	FaultFail  FaultKind = "fail"  // the step fails
	FaultPause FaultKind = "pause" // the step waits until a test has done something to it: see Fault.File
)

// Fault is something that goes wrong at one point of a migration. Tests compose faults; an agent that was started
// without any has none.
type Fault struct {
	Side string // source or target
	Step string
	When string // before or after
	Kind FaultKind
}

// ParseFault reads SIDE:STEP:before|after:kill|fail|pause.
func ParseFault(text string) (Fault, error) {
	parts := strings.Split(text, ":")
	if len(parts) != 4 {
		return Fault{}, fmt.Errorf("fault %q: want SIDE:STEP:WHEN:KIND", text)
	}
	fault := Fault{Side: parts[0], Step: parts[1], When: parts[2], Kind: FaultKind(parts[3])}
	if !slices.Contains([]string{"source", "target"}, fault.Side) ||
		!slices.Contains([]string{"before", "after"}, fault.When) ||
		!slices.Contains([]FaultKind{FaultKill, FaultFail, FaultPause}, fault.Kind) {
		return Fault{}, fmt.Errorf("fault %q: want source|target:STEP:before|after:kill|fail|pause", text)
	}
	return fault, nil
}

// File is made, in the agent's run directory, when a paused step is reached. The step goes on when it is removed.
func (f Fault) File(runDir string) string {
	return filepath.Join(runDir, "faults", f.Side+"-"+f.Step+"-"+f.When)
}

// errFault is what a step with FaultFail returns.
var errFault = errors.New("failed on purpose, by a fault that this agent was started with")

type faults struct {
	runDir string
	list   []Fault
}

// at makes happen what was asked for at this point. Each fault happens once in the life of an agent process, so that
// an agent that was killed by one can be started again with it.
func (f *faults) at(ctx context.Context, side, step, when string) error {
	for _, fault := range f.list {
		if fault.Side != side || fault.Step != step || fault.When != when {
			continue
		}
		switch fault.Kind {
		case FaultKill:
			if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
				return err
			}
			select {} // The signal ends this process.
		case FaultFail:
			return errFault
		case FaultPause:
			return pause(ctx, fault.File(f.runDir))
		}
	}
	return nil
}

func pause(ctx context.Context, file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
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
