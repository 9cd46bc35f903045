package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pager"
)

// Coming is a restore that waits in the restore proxy of package criu, and the memory that is filled while
// it continues.
type Coming struct {
	images      string // directory with the execution state
	memoryLimit int64  // of the container, bytes; 0: none
	proxy       *criu.Proxy
	pages       *memory.Store // nil: all memory is in the images
	pager       *pager.Pager
	shared      []memory.StoredObject // passed to CRIU
}

// Expect listens for a restore proxy. The caller makes the runtime start the proxy with the same socket,
// and waits for it with WaitReady.
func Expect(socket, images string, memoryLimit int64) (*Coming, error) {
	proxy, err := criu.ListenProxy(socket)
	if err != nil {
		return nil, err
	}
	return &Coming{images: images, memoryLimit: memoryLimit, proxy: proxy}, nil
}

// WaitReady returns when the restore waits for its state.
func (c *Coming) WaitReady(ctx context.Context) error { return c.proxy.WaitReady(ctx) }

// FillFrom makes GoOn leave out the memory that can be filled while the processes run.
func (c *Coming) FillFrom(ctx context.Context, pages *memory.Store, config pager.Config) error {
	if c.pager != nil {
		return errors.New("the memory of this arrival has a source already")
	}
	p, err := pager.Start(ctx, config)
	if err != nil {
		return fmt.Errorf("prepare to fill its memory: %w", err)
	}
	c.pager, c.pages = p, pages
	return nil
}

// EndWaiting ends the restore proxy, and so the restore, before GoOn is called.
func (c *Coming) EndWaiting() error { return c.proxy.Close() }

// Close ends the restore proxy, and so the restore, and the pager, unless the processes have been resumed.
func (c *Coming) Close() error {
	err := c.proxy.Close()
	if c.pager != nil {
		err = errors.Join(err, c.pager.Close()) // this ends a waiting pager
	}
	return err
}

// GoOn lets CRIU restore on this root file system, a mount point. When all sockets exist, and before the
// first process runs, GoOn asks for permission. If permission is refused, nothing will ever run
// (criu.Proxy.Go). The pages are handed over meanwhile: CRIU needs them only in its last part, and the
// processes may not run before. Of two errors, GoOn returns the one that caused the other.
func (c *Coming) GoOn(ctx context.Context, root string, permission engine.Permission) (criu.Resumed, error) {
	defer c.closeShared()
	inherit, err := c.takeShared()
	if err != nil {
		return criu.Resumed{}, err
	}
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	var refused error
	handed := make(chan struct{})
	go func() {
		defer close(handed)
		if refused = c.handOver(ctx); refused != nil {
			giveUp()
		}
	}()
	options := criu.ProxyOptions{
		Root: root, LazyPages: c.pages != nil, Inherit: inherit, Open: permission.Open,
	}
	resumed, err := c.proxy.Go(ctx, options, func() error {
		<-handed
		if refused != nil {
			return refused
		}
		if err := c.sealShared(); err != nil {
			return err
		}
		if c.pager != nil {
			_ = c.pager.Restored() // the pager continues without it
		}
		return permission.Ask()
	})
	if err != nil {
		giveUp()
	}
	<-handed
	if err != nil && refused != nil && !errors.Is(refused, context.Canceled) {
		err = refused // the refusal ended the restore, and not the other way round
	}
	if err == nil && c.pager != nil {
		_ = c.pager.Resumed() // the pager continues without it
	}
	return resumed, err
}

// takeShared takes received shared memory for CRIU. It refuses memory for which there is no room.
func (c *Coming) takeShared() (map[string]*os.File, error) {
	if c.pages == nil {
		return c.inheritShared()
	}
	stats := c.pages.Stats()
	pages := stats.Pages + stats.RemotePages + stats.SharedPages
	if limit := c.memoryLimit; limit > 0 && pages*int64(memory.PageSize()) > limit {
		return nil, fmt.Errorf("the container's processes need %d pages of %d bytes, more than its "+
			"memory limit of %d bytes allows: memory that processes shared is filled for each of them "+
			"separately; move the container with --mode cold", pages,
			memory.PageSize(), limit)
	}
	var err error
	if c.shared, err = c.pages.TakeObjects(); err != nil {
		return nil, err
	}
	return c.inheritShared()
}

// handOver gives the pages to the pager, which then waits for CRIU. It refuses pages that could not be
// filled, because once the container runs there is no way back.
func (c *Coming) handOver(ctx context.Context) error {
	if c.pages == nil {
		return nil
	}
	if err := c.checkLeftOut(); err != nil {
		return err
	}
	image, err := c.pages.Seal()
	if err != nil {
		return err
	}
	return c.pager.Serve(ctx, image)
}

// inheritShared finds the received shared memory that CRIU needs. All of it must be here.
func (c *Coming) inheritShared() (map[string]*os.File, error) {
	wanted, err := criu.SharedFiles(c.images)
	if err != nil {
		return nil, err
	}
	here := make(map[uint64]*os.File, len(c.shared))
	for _, o := range c.shared {
		here[o.Inode] = o.File
	}
	inherit := make(map[string]*os.File, len(wanted))
	for _, w := range wanted {
		if here[w.Inode] == nil {
			return nil, fmt.Errorf("%w: shared memory of inode %d", memory.ErrPagesMissing, w.Inode)
		}
		inherit[w.Key] = here[w.Inode]
	}
	return inherit, nil
}

// sealShared adds the seals that had to wait until everything is mapped.
func (c *Coming) sealShared() error {
	for i := range c.shared {
		if err := c.shared[i].Seal(); err != nil {
			return err
		}
	}
	return nil
}

// closeShared closes shared memory, which now belongs to the processes, or to nobody.
func (c *Coming) closeShared() {
	for _, o := range c.shared {
		_ = o.File.Close() // it is in memory
	}
	c.shared = nil
}

// checkLeftOut requires every page that the dump left to others to have come.
func (c *Coming) checkLeftOut() error {
	maps, err := leftOut(c.images)
	if err != nil {
		return err
	}
	return c.pages.Check(maps)
}

// leftOut returns the memory whose contents a dump has left to others.
func leftOut(images string) ([]memory.TaskMap, error) {
	left, err := criu.LeftOut(images)
	if err != nil {
		return nil, err
	}
	return taskMaps(left), nil
}

func taskMaps(left []criu.LazyMemory) []memory.TaskMap {
	maps := make([]memory.TaskMap, 0, len(left))
	for _, l := range left {
		m := memory.TaskMap{Task: memory.Task(l.PID)}
		for _, r := range l.Ranges {
			m.Areas = append(m.Areas, memory.Area{Start: r.Start, Pages: r.Pages})
		}
		maps = append(maps, m)
	}
	return maps
}
