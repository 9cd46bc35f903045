package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory"
)

// newcomer is a container that will be started here, from files that come from another node. Until
// the record is written that says that it stays it runs on trial: whoever finds it without its
// agent ends it.
type newcomer struct {
	*arrival
	ports []engine.Port
}

var _ engine.Arrival = (*newcomer)(nil)

// PrepareStart prepares a container that will be started here.
func (e *Engine) PrepareStart(
	ctx context.Context, d engine.Definition, netns string, ports []engine.Port,
) (engine.Arrival, error) {
	problems, err := e.ReserveAnew(ctx, d)
	if err == nil {
		err = refusal(d, problems)
	}
	if err != nil {
		return nil, err
	}
	a, err := e.expect(ctx, d, func(a *arrival) error {
		if err := a.makeFiles(netns, true); err != nil {
			return err
		}
		return a.clearPrivate()
	})
	if err != nil {
		return nil, err
	}
	return &newcomer{a, ports}, nil
}

// ImagesDir is of no use: no state comes.
func (n *newcomer) ImagesDir() string { return "" }

// FillFrom fails: it has no memory yet.
func (n *newcomer) FillFrom(context.Context, *memory.Store) error {
	return fmt.Errorf("fill the memory of container %s, which is to be started: %w", n.definition.Name, errors.ErrUnsupported)
}

// TreePath is where the content of the source's tree of this kind and name must be put. What was in
// memory ends with it.
func (n *newcomer) TreePath(kind files.TreeKind, name string) (string, error) {
	if kind == files.Memory {
		return "", fmt.Errorf("container %s is to be started, and gets no tree %.40q of kind %s", n.definition.Name, name, kind)
	}
	return n.arrival.TreePath(kind, name)
}

// Restore starts the container and waits until it is healthy. When it returns with an error nothing
// of it runs any more.
func (n *newcomer) Restore(ctx context.Context, permission engine.Permission) (time.Time, error) {
	defer n.engine.lock(n.definition.ID)()
	at, err := n.start(ctx, permission)
	if err != nil {
		n.endForSure(context.WithoutCancel(ctx))
		return time.Time{}, fmt.Errorf("start container %s: %w", n.definition.Name, err)
	}
	_ = n.engine.settleArrival(context.WithoutCancel(ctx), n.files) // Arrived does it again
	return at, nil
}

func (n *newcomer) start(ctx context.Context, permission engine.Permission) (time.Time, error) {
	if err := checkPrivate(n.files); err != nil {
		return time.Time{}, err
	}
	if err := n.engine.bringUp(ctx, n.files, n.definition, true); err != nil {
		return time.Time{}, err
	}
	if _, err := n.engine.newTrial(n.files, n.definition, n.ports).await(ctx); err != nil {
		return time.Time{}, err
	}
	if err := permission.Ask(); err != nil {
		return time.Time{}, err
	}
	if err := kernel.WriteFileAtomic(n.files.resumed(), nil, 0o600); err != nil {
		return time.Time{}, errors.Join(fmt.Errorf("record that it stays: %w", err), durable.Remove(n.files.resumed()))
	}
	return time.Now(), nil
}

// endForSure ends what was started. Others are told next that nothing runs here, so it does not
// return before that is true.
func (n *newcomer) endForSure(ctx context.Context) {
	for n.engine.endTrial(ctx, n.files) != nil {
		time.Sleep(logRetry)
	}
}

// endTrial ends what runs on trial, and what is about to start it.
func (e *Engine) endTrial(ctx context.Context, place container) error {
	if err := endSession(ctx, place); err != nil {
		return err
	}
	if err := killCgroup(ctx, place); err != nil {
		return err
	}
	return e.settle(ctx, place)
}

// startedAnew tells whether an arrival is one that is started here.
func startedAnew(place container) (bool, error) {
	var was arrivalRecord
	if err := durable.Load(place.arrival(), &was); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return was.Anew, nil
}

// outcomeAnew looks for the record of a container that was started here, and ends one that runs on trial.
func (e *Engine) outcomeAnew(ctx context.Context, place container, err error) (engine.Outcome, error) {
	if err != nil {
		return "", err
	}
	if _, err := os.Lstat(place.resumed()); err == nil {
		return engine.Ran, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return engine.NeverRan, e.endTrial(ctx, place)
}

// ExamineAnew lists what stands against this running container being started anew on another node.
func (e *Engine) ExamineAnew(ctx context.Context, id string) ([]engine.Problem, error) {
	ctr, err := e.running(id)
	if err != nil {
		return nil, err
	}
	if ctr.Definition.Health == nil {
		return nil, nil
	}
	var problems []engine.Problem
	if err := e.checkHealth(ctx, e.paths.of(id), ctr.Definition); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		problems = append(problems, engine.Problem{
			What: "health of container " + ctr.Definition.Name, Why: err.Error() + ": it would not count as healthy anywhere else either",
			Remedy: "repair it, or run it with another --health-cmd, or with --health-cmd none",
		})
	}
	return problems, nil
}
