package embedded

import (
	"context"
	"fmt"
	"time"
)

// closePatience is how long runc and the monitor may take to end after their restore proxy, before they are
// killed.
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
	// outcome ends the monitor's session, unless the container was allowed to run.
	if _, err := a.arrivals.outcome(ctx, a.files); err != nil {
		return fmt.Errorf("end the arrival of container %s: %w", a.definition.Name, err)
	}
	select {
	case <-a.settled:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("end the arrival of container %s: its monitor does not end", a.definition.Name)
	}
}
