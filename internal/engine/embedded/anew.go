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

// candidate is a container that will be started here, from another node's files. It runs on probation until
// the record is written that it stays. Until then, whoever finds it without its agent ends it.
type candidate struct {
	*arrival
	ports []engine.Port
}

var _ engine.Arrival = (*candidate)(nil)

// PrepareStart prepares a container that will be started here.
func (r *arrivals) PrepareStart(
	ctx context.Context, d engine.Definition, netns string, ports []engine.Port,
) (engine.Arrival, error) {
	problems, err := r.ReserveAnew(ctx, d)
	if err == nil {
		err = refusal(d, problems)
	}
	if err != nil {
		return nil, err
	}
	a, err := r.expect(ctx, d, func(a *arrival) error {
		if err := a.makeFiles(netns, true); err != nil {
			return err
		}
		return a.clearPrivate()
	})
	if err != nil {
		return nil, err
	}
	return &candidate{a, ports}, nil
}

// ImagesDir is unused: no state comes.
func (c *candidate) ImagesDir() string { return "" }

// FillFrom fails: there is no memory yet.
func (c *candidate) FillFrom(context.Context, *memory.Store) error {
	return fmt.Errorf("fill the memory of container %s, which will be started and not restored: %w",
		c.definition.Name,
		errors.ErrUnsupported)
}

// TreePath returns where to put the content of the source's tree of this kind and name. Trees in memory
// have ended with the source's container.
func (c *candidate) TreePath(kind files.TreeKind, name string) (string, error) {
	if kind == files.Memory {
		return "", fmt.Errorf("container %s will be started and not restored, and takes no tree %.40q "+
			"of kind %s",
			c.definition.Name, name, kind)
	}
	return c.arrival.TreePath(kind, name)
}

// Restore starts the container and waits until it is healthy. When Restore returns an error, none of its
// processes runs any more.
func (c *candidate) Restore(ctx context.Context, permission engine.Permission) (time.Time, error) {
	defer c.arrivals.catalog.lock(c.definition.ID)()
	at, err := c.start(ctx, permission)
	if err != nil {
		c.endForSure(context.WithoutCancel(ctx))
		return time.Time{}, fmt.Errorf("start container %s: %w", c.definition.Name, err)
	}
	_ = c.arrivals.settleArrival(context.WithoutCancel(ctx), c.files) // Arrived repeats it
	return at, nil
}

func (c *candidate) start(ctx context.Context, permission engine.Permission) (time.Time, error) {
	if err := checkPrivate(c.files); err != nil {
		return time.Time{}, err
	}
	if err := c.arrivals.processes.bringUp(ctx, c.files, c.definition, true); err != nil {
		return time.Time{}, err
	}
	if _, err := newProbation(c.arrivals.execs, c.files, c.definition, c.ports).await(ctx); err != nil {
		return time.Time{}, err
	}
	if err := permission.Ask(); err != nil {
		return time.Time{}, err
	}
	if err := kernel.WriteFileAtomic(c.files.resumed(), nil, 0o600); err != nil {
		return time.Time{}, errors.Join(fmt.Errorf("record that it stays: %w", err),
			durable.Remove(c.files.resumed()))
	}
	return time.Now(), nil
}

// endRetry is the pause before the end of a container is tried again.
const endRetry = 500 * time.Millisecond

// endForSure ends the started container. The caller then reports that nothing runs here, so endForSure does
// not return before that is true.
func (c *candidate) endForSure(ctx context.Context) {
	for c.arrivals.processes.endProbation(ctx, c.files) != nil {
		time.Sleep(endRetry)
	}
}

// startedAnew reports whether an arrival is one that is started here.
func startedAnew(place container) (bool, error) {
	var was arrivalRecord
	if err := durable.Load(place.arrival(), &was); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return was.Anew, nil
}

// outcomeAnew looks for the record of a container that was started here, and ends one that runs on probation.
func (r *arrivals) outcomeAnew(ctx context.Context, place container, err error) (engine.Outcome, error) {
	if err != nil {
		return "", err
	}
	if _, err := os.Lstat(place.resumed()); err == nil {
		return engine.Ran, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return engine.NeverRan, r.processes.endProbation(ctx, place)
}
