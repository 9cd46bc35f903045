package embedded

import (
	"context"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/criu"
)

// goOn lets CRIU restore. The pages are handed over meanwhile: CRIU needs them only in its last part, and the processes are
// not allowed to run before.
func (a *arrival) goOn(ctx context.Context, beforeResume func() error) (criu.Resumed, error) {
	defer a.closeShared()
	inherit, err := a.takeShared()
	if err != nil {
		return criu.Resumed{}, err
	}
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	var refused error
	handed := make(chan struct{})
	go func() {
		defer close(handed)
		if refused = a.handOver(ctx); refused != nil {
			giveUp()
		}
	}()
	options := criu.GateOptions{Root: a.files.rootfs(), LazyPages: a.pages != nil, Inherit: inherit}
	resumed, err := a.gate.Go(ctx, options, func() error {
		<-handed
		if refused != nil {
			return refused
		}
		if err := a.sealShared(); err != nil {
			return err
		}
		return beforeResume()
	})
	if err != nil {
		giveUp()
	}
	<-handed
	if err != nil && refused != nil {
		err = refused // why it was given up
	}
	return resumed, err
}

// closePatience is how long runc and the monitor may take to end when their gate has, before they are ended.
const closePatience = 5 * time.Second

// awaitSettled waits until the monitor has the container, or until nothing is left that could make it run.
func (a *arrival) awaitSettled() error {
	select {
	case <-a.settled:
		return nil
	case <-time.After(a.patience):
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*closePatience)
	defer cancel()
	// It ends the monitor's session, unless the container was allowed to run.
	if _, err := a.engine.outcome(ctx, a.files); err != nil {
		return fmt.Errorf("end the arrival of container %s: %w", a.definition.Name, err)
	}
	select {
	case <-a.settled:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("end the arrival of container %s: its monitor does not end", a.definition.Name)
	}
}
