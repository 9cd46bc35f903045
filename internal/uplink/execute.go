package uplink

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/migration"
)

// followEvery is how often a migration that the controller asked for is looked at.
const followEvery = 200 * time.Millisecond

// check refuses a command that is not well formed.
func check(c *api.Command) error {
	_, err := migration.ParseMode(c.Mode)
	err = errors.Join(err, migration.CheckID(c.Id), migration.CheckContainerID(c.Container),
		migration.CheckNode(c.Node))
	if limit := c.BandwidthLimitBitsPerSecond; limit < 0 || math.IsNaN(limit) {
		err = errors.Join(err, fmt.Errorf("bandwidth limit %g: must be a rate, or 0", limit))
	}
	if c.Epoch == 0 || c.Generation == 0 {
		err = errors.Join(err, errors.New("a command needs an epoch and a generation"))
	}
	return err
}

// execute does what a command asks for, unless it was done before, and tells what came of it.
func (u *Uplink) execute(ctx context.Context, c *api.Command) {
	if err := check(c); err != nil {
		u.log.Warn("command of the controller refused", "error", err)
		u.tell(&api.Outcome{Command: c.Id, State: Failed, Error: "refused: " + err.Error()})
		return
	}
	found, known, err := u.journal.begin(c, u.now())
	switch {
	case err != nil:
		u.log.Warn("command of the controller refused", "command", c.Id, "error", err)
		u.tell(&api.Outcome{Command: c.Id, State: Failed, Error: "refused: " + err.Error()})
		return
	case known:
		u.tell(found.outcome()) // if it has not ended, follow tells the rest
		return
	}
	u.tell(found.outcome())
	u.log.Info("the controller asks for a migration", "migration", c.Id, "container", c.Container, "to",
		c.Node)
	u.following.Go(guard.Logged(u.log, func() {
		if u.begin(ctx, c, found) {
			u.follow(ctx, found)
		}
	}))
}

// cancel has the migration of a command cancelled. Whoever follows the migration sees to that; a command that
// has not arrived will never begin.
func (u *Uplink) cancel(c *api.Command) {
	err := check(c)
	if err == nil {
		var found entry
		if found, err = u.journal.cancel(c, u.now()); err == nil {
			u.log.Info("the controller asks to cancel a migration", "migration", c.Id, "state", found.State)
			u.tell(found.outcome())
			return
		}
	}
	u.log.Warn("the controller's wish to cancel a migration is refused", "command", c.Id, "error", err)
	if !errors.Is(err, errStale) { // an earlier leader has nothing to decide
		u.tell(&api.Outcome{Command: c.Id, State: Begun, CancelError: "refused: " + err.Error()})
	}
}

// begin begins the migration of a command, and reports whether there is one to follow.
func (u *Uplink) begin(ctx context.Context, c *api.Command, one entry) bool {
	if u.journal.cancels(c.Id) > 0 {
		one.State, one.Error = Failed, errCancelled.Error()
		u.finish(ctx, one)
		return false
	}
	err := u.node.Migrate(ctx, &api.MigrateRequest{
		Container: c.Container, Node: c.Node, Mode: c.Mode, Migration: c.Id,
		BandwidthLimitBitsPerSecond: c.BandwidthLimitBitsPerSecond,
	})
	if err == nil {
		return true
	}
	if _, _, known := u.node.Report(c.Id); known {
		return true // the migration has begun in spite of the error, and its report will say how it ended
	}
	one.State, one.Error, one.Refused = Failed, api.Plain(err), errors.Is(err, api.ErrRefused)
	u.finish(ctx, one)
	return false
}

// follow waits for the end of a migration, and tells of it.
func (u *Uplink) follow(ctx context.Context, one entry) {
	ticker := time.NewTicker(followEvery)
	defer ticker.Stop()
	asked := 0 // to cancel it
	for !u.look(ctx, &one) {
		asked = u.cancelAgain(one, asked)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// cancelAgain cancels a migration if the controller has asked for that more often than was seen, and returns
// how often it has. Why that fails is told: the migration goes on.
func (u *Uplink) cancelAgain(one entry, seen int) int {
	asked := u.journal.cancels(one.ID)
	if asked == seen {
		return seen
	}
	if err := u.node.Cancel(one.ID); err != nil {
		u.log.Info("a migration cannot be cancelled", "migration", one.ID, "error", err)
		outcome := one.outcome()
		outcome.CancelError = api.Plain(err)
		u.tell(outcome)
	}
	return asked
}

// look tells of news about a migration, and reports whether it has ended.
func (u *Uplink) look(ctx context.Context, one *entry) (ended bool) {
	report, ended, known := u.node.Report(one.ID)
	switch {
	case !known:
		// The migration is recorded before it does anything: it never began.
		one.State, one.Error = Failed, "the agent ended before the migration began"
		ended = true
	case ended:
		one.Downtime, one.Total = report.DowntimeSeconds, report.TotalSeconds
		if one.State = Moved; report.Result != migration.Moved {
			one.State, one.Error = Failed, string(report.Result)
			one.Refused = report.Result == migration.Refused
			if report.Error != nil {
				one.Error = *report.Error
			}
		}
	case report.Result == migration.ResultDoubt && one.State != InDoubt:
		one.State = InDoubt
		u.note(*one)
	}
	if ended {
		u.finish(ctx, *one)
	}
	return ended
}

// finish records the end of a command. What has changed on the node is told before it: the controller must
// not think that a container is where it no longer is.
func (u *Uplink) finish(ctx context.Context, one entry) {
	u.refresh(ctx, true)
	u.note(one)
}

// note records what came of a command, and tells the controller.
func (u *Uplink) note(one entry) {
	if err := u.journal.note(one); err != nil {
		u.log.Error("cannot record what came of a command", "command", one.ID, "error", err)
	}
	u.tell(one.outcome())
}
