package frozen

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
)

// Ask calls the target, for so long at most.
type Ask func(ctx context.Context, limit time.Duration,
	call func(context.Context, api.PeerClient) error) error

// durableTimeout bounds how long a busy disk may take; the step is tried again.
const durableTimeout = time.Minute

// AwaitUnneeded waits until the copy here is not needed any more: until the target has on disk what it
// received. An operator who says that the container runs at the target may say so because that node cannot be
// asked.
func (c *Copy) AwaitUnneeded(ctx context.Context, ask Ask) error {
	record := c.config.Migration.Record()
	if record.Resolved {
		return nil
	}
	err := ask(ctx, durableTimeout, func(ctx context.Context, peer api.PeerClient) error {
		request := &api.DurableRequest{Migration: c.config.ID, Incarnation: record.Incarnation}
		_, err := peer.Durable(ctx, request)
		return err
	})
	if status.Code(err) == codes.DataLoss {
		return c.lossy(err)
	}
	if err != nil {
		return fmt.Errorf("files at %s: %s", c.config.Target, api.Plain(err))
	}
	return nil
}

// lossy makes a refusal of a target that does not know whether it still has the files: the copy
// here is the only one that is whole for sure, and an operator has to decide.
func (c *Copy) lossy(err error) error {
	return &migration.Refusal{Problems: []migration.Problem{{
		What: "files at " + c.config.Target, Why: api.Plain(err), Remedy: c.Decide(),
	}}}
}

// Decide is what an operator can do who has to decide.
func (c *Copy) Decide() string {
	return fmt.Sprintf(
		`decide: "godwit migration resolve %s --runs-at source" resumes the frozen copy here, `+
			`"--runs-at target" removes it`, c.config.ID)
}

// MayTakeBack refuses to let the container go on here that has been handed over, if it is not here any more,
// or if the target is well and takes its memory.
func (c *Copy) MayTakeBack(ctx context.Context, force bool, well func() bool) error {
	there, name := c.config.Target, c.config.Container.Name
	if !force && c.Killed(ctx) {
		return fmt.Errorf("%w: another program on this node has killed the frozen copy of %s: it would "+
			"exit as soon as it was thawed. Wait for %s, or decide that the container runs there; --force "+
			"ends the copy here", api.ErrRefused, name, there)
	}
	if c.config.Migration.Record().State != migration.Committed {
		return nil // the machine says whether there is something to resolve
	}
	c.KeepAgain(ctx)
	gone, err := c.Gone(ctx)
	if gone {
		return fmt.Errorf("%w: this node no longer has the frozen copy of %s: the container runs at %s or "+
			"nowhere", api.ErrRefused, name, there)
	}
	if err == nil && well() {
		return fmt.Errorf("%w: %s appears to be receiving the memory of %s. If it has failed, this node "+
			"notices within seconds: try again then", api.ErrRefused, there, name)
	}
	return err
}
