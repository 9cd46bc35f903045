package restart

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/embedded"
	"github.com/godwit/godwit/internal/location"
)

// standing is what the container's policy says now, and why the container is not to be started; "":
// it is.
func (r *Restarts) standing(one engine.Container) (embedded.Standing, string) {
	if err := r.mayStart(one.Definition, false); err != nil {
		return embedded.Standing{}, api.Plain(err)
	}
	standing, err := r.engine.Standing(one)
	switch {
	case err != nil:
		return standing, api.Plain(err)
	case one.Leaving != nil:
		return standing, standing.Why + r.migrations.Unusable(one)
	case standing.Unheld:
		return standing, standing.Why + "; " + byForce(one.Definition)
	case !standing.Due:
		return standing, standing.Why
	}
	if !r.hasSeen(one.Definition.ID) {
		if missing := r.members.Unreached(); len(missing) > 0 {
			return standing, fmt.Sprintf("it may be on %s, which cannot be reached: see \"godwit nodes\". "+
				"It is started when all nodes have answered; \"godwit start --force %s\" starts it now, "+
				"\"godwit node rm\" removes a node that is lost for good", strings.Join(missing, ", "),
				one.Definition.Name)
		}
	}
	return standing, ""
}

// whyNot tells users why a container of the embedded engine does not run.
func (r *Restarts) whyNot(one engine.Container) string {
	if _, why := r.standing(one); why != "" {
		return why
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.known[one.Definition.ID]
	again := "it is started again in a moment"
	if f != nil && time.Until(f.due) > restartEvery {
		again = fmt.Sprintf("it is started again in %s", time.Until(f.due).Round(time.Second))
	}
	if f != nil && errors.Is(f.failed, location.ErrElsewhere) && !errors.Is(f.failed, location.ErrThere) {
		again = byForce(one.Definition) + "; the other nodes are asked again every " + askAgainEvery.String()
	}
	if f != nil && f.failed != nil {
		return fmt.Sprintf("it could not be started: %s; %s", api.Plain(f.failed), again)
	}
	return again
}

// byForce says how a user starts a container of which it cannot be found out whether another node has it.
func byForce(d engine.Definition) string {
	return fmt.Sprintf(`if it is nowhere else, "godwit start --force %s" starts it here`, d.Name)
}

// Wanted reports whether a container that has ended has a policy that would have it run.
func (r *Restarts) Wanted(one engine.Container) bool {
	if one.Definition.Restart == "" || one.Definition.Restart == string(engine.RestartNo) {
		return false
	}
	standing, err := r.engine.Standing(one)
	return err != nil || standing.Due || standing.Unheld || one.Leaving != nil
}

// Explain adds to containers of the embedded engine why they do not run.
func (r *Restarts) Explain(containers []engine.Container) {
	for i := range containers {
		one := &containers[i]
		if one.Definition.EngineName == "" && (one.State == engine.Exited || one.State == engine.Created) {
			one.NotRunning = r.whyNot(*one)
		}
	}
}
