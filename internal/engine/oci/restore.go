package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/mounts"
	"github.com/godwit/godwit/internal/files"
)

// Restore makes the processes from the state that has arrived so far.
func (a *arrival) Restore(ctx context.Context, permission engine.Permission) (time.Time, error) {
	e := a.arrivals
	unlock := e.locks.Lock(a.definition.ID)
	fail := func(err error) (time.Time, error) {
		unlock()
		return time.Time{}, fmt.Errorf("restore container %s: %w", a.definition.Name, err)
	}
	if err := errors.Join(a.carryLog(), a.bringKept()); err != nil {
		return fail(err)
	}
	if err := a.remount(); err != nil {
		return fail(err)
	}
	a.beginRestore()
	if err := a.waits(); err != nil {
		return fail(err)
	}
	until, giveUp := a.patiently(ctx)
	defer giveUp()
	ask := func() error {
		if err := permission.Ask(); err != nil {
			return err
		}
		return a.waits()
	}
	resumed, err := a.coming.GoOn(until, a.root.Target, engine.Permission{Ask: ask, Open: permission.Open})
	if err != nil {
		return fail(errors.Join(err, a.inTime()))
	}
	// The engine's start ends after the container runs. Other operations on the container wait for that.
	go func() {
		defer unlock()
		<-a.begun()
		if a.startErr != nil && a.expected.Late {
			_ = save(e.records.orphanPath(a.definition.ID), a.startErr.Error()) // its guard stays: see orphan
		}
		_ = e.endings.settle(context.WithoutCancel(ctx), a.definition.ID) // Arrived repeats it
	}()
	return resumed.At, nil
}

// patiently returns a context that ends with the engine's patience.
func (a *arrival) patiently(ctx context.Context) (context.Context, context.CancelFunc) {
	if until := a.Until(); !until.IsZero() {
		return context.WithDeadline(ctx, until)
	}
	return context.WithCancel(ctx)
}

// inTime returns an error if the engine is about to give the container up. The engine would end a container
// that was resumed then, because it has not seen it run.
func (a *arrival) inTime() error {
	if until := a.Until(); !until.IsZero() && !time.Now().Before(until) {
		return fmt.Errorf("the start timeout of %s is about to expire: the container's state has not "+
			"come within %v", a.title, a.expected.Patience)
	}
	return nil
}

// waits returns an error unless the engine's start still waits for the container. An engine whose start has
// ended would not know the restored container, and end it. An engine that is about to give up would do the
// same.
func (a *arrival) waits() error {
	started := a.begun()
	if started == nil {
		return fmt.Errorf("%s has not been told to start it", a.title)
	}
	select {
	case <-started:
		return errors.Join(fmt.Errorf("%s no longer waits for it", a.title), a.startErr)
	default:
		return a.inTime()
	}
}

// remount mounts the root file system again. Its writable layer was written to behind the back of the
// engine's mount, which may have cached its earlier contents. Nobody uses the engine's mount yet.
func (a *arrival) remount() error {
	if err := mounts.Unmount(a.root.Target); err != nil {
		return err
	}
	if err := files.RemoveTree(asideOf(a.root.Upper)); err != nil { // nobody has it mounted any more
		return err
	}
	return a.root.Mount()
}

// bringKept installs the files of a FileMigrator.
func (a *arrival) bringKept() error {
	migrator, is := a.arrivals.adapter.(FileMigrator)
	if !is {
		return nil
	}
	private := a.arrivals.records.private(a.definition.ID)
	if err := migrator.Bring(a.engineID, private, a.definition); err != nil {
		return fmt.Errorf("files of the container: %w", err)
	}
	return nil
}

// carryLog puts the source engine's log before the output that will be logged here. The engine has opened
// an empty log and written nothing yet.
func (a *arrival) carryLog() error {
	came := filepath.Join(a.arrivals.records.private(a.definition.ID), logName)
	info, err := os.Lstat(came)
	if errors.Is(err, os.ErrNotExist) || a.log == "" {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() { // another node has sent it
		return errors.New("the log that has come is not a regular file")
	}
	from, err := os.Open(came)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(a.log, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return fmt.Errorf("log of the container: %w", err)
	}
	if err := errors.Join(fillLog(to, from), to.Close()); err != nil {
		return fmt.Errorf("log of the container: %w", err)
	}
	return nil
}
