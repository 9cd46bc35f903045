package state

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// How the target answers to pages that come ahead.
const (
	HeardAll  = "all"
	HeardNone = "none"
)

// Announced is what was sent ahead to a target, which says whether it has that.
type Announced struct {
	mu    sync.Mutex
	known *Known    // nil: nothing was sent, or the target does not have it
	heard chan bool // whether the target has it
}

// Send sends pages ahead, if there are some.
func (a *Announced) Send(known *Known, send func(content []byte) error) error {
	if known.Empty() {
		return nil
	}
	a.mu.Lock()
	a.known, a.heard = known, make(chan bool, 1)
	a.mu.Unlock()
	return send(known.All())
}

// Hear takes what the target says of what was sent ahead.
func (a *Announced) Hear(answer string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if answer != HeardAll && answer != HeardNone {
		return fmt.Errorf("unknown answer of the target about pages of files sent ahead: %.40q", answer)
	}
	select {
	case a.heard <- answer == HeardAll:
		return nil
	default: // also if there is nothing to say anything of
		return errors.New("the target answered about pages of files that it was not sent")
	}
}

// Await waits until the target has what was sent ahead, or has said that it cannot have it.
func (a *Announced) Await(ctx context.Context) (refused bool, err error) {
	a.mu.Lock()
	known, heard := a.known, a.heard
	a.mu.Unlock()
	if known == nil {
		return false, nil
	}
	select {
	case all := <-heard:
		if !all {
			a.mu.Lock()
			a.known = nil
			a.mu.Unlock()
		}
		return !all, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// Known is what the target has, and pieces of the state may refer to; nil: nothing.
func (a *Announced) Known() *Known {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.known
}
