package agent

import (
	"context"
	"errors"
	"time"

	"github.com/godwit/godwit/internal/kernel"
)

// The least shares are of all memory: when less than that is available, residual copies go first, and then
// copies that other nodes have staged here.
const (
	residualLeastShare = 10
	stagedLeastShare   = 20
)

// watchMemory gives up what can be made again when its time is over, and when memory, or the disk, is short.
func (a *Agent) watchMemory(ctx context.Context) {
	tick := time.NewTicker(stageTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			a.residuals.Expire(now)
			a.kept.Expire(now)
			a.engines.LetGo()
			a.relieve()
		}
	}
}

// relieve gives up a residual copy or, if there is none, a staged copy, when memory is short: one at a time.
func (a *Agent) relieve() {
	if len(a.residuals.List()) == 0 && len(a.stagedCopies.list()) == 0 {
		return
	}
	machine, err := kernel.ReadMachine()
	if err != nil {
		return // nothing is known to be short
	}
	available, total := machine.MemoryAvailableBytes, machine.MemoryTotalBytes
	if available < total/residualLeastShare && a.residuals.DropOldest() {
		a.log.Info("residual memory copy of a container given up: memory is short", "available", available)
		return
	}
	if list := a.stagedCopies.list(); len(list) > 0 && available < total/stagedLeastShare {
		list[0].drop(errCopyShort)
	}
}

var errCopyShort = errors.New("that node is short of memory")
