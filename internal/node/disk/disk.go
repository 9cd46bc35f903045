// Package disk syncs everything that came with a container to disk, so that the source may remove its copy.
// It knows where the parts of a container are, but no step of a migration.
package disk

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/journal"
)

// Config of a node's disk.
type Config struct {
	Node     string // its name
	Boot     string // id of the machine's boot
	StateDir string
	Engines  Engines
	Images   Images
	Volumes  Volumes
	Timeout  time.Duration   // of a question to an engine
	Life     context.Context //nolint:containedctx // The life of the daemon: a sync outlives its call.
}

// Engines of the node. See engine.Set.
type Engines interface {
	Lookup(of engine.Definition) (engine.Engine, error)
	// ImagesOf are the images of an engine; nil: the node's own store has them.
	ImagesOf(name string) (engine.Images, error)
}

// Images of the node. See image.Store.
type Images interface{ Sync() error }

// Volumes of containers. See volumes.Mover.
type Volumes interface {
	Sync(of engine.Definition) error
}

// Disk is where the parts of containers are.
type Disk struct{ config Config }

// New returns the disk of a node.
func New(c Config) *Disk { return &Disk{c} }

// Sync makes sure that what came with a container is on disk. If that cannot be known any more the
// source must keep its copy, and an operator has to decide.
func (d *Disk) Sync(journal *journal.Journal) error {
	if journal.Lost(d.config.Boot) {
		return status.Errorf(codes.DataLoss,
			"%s was booted again before all files of the container were on disk", d.config.Node)
	}
	if err := files.Sync(d.config.StateDir); err != nil {
		return err
	}
	if err := d.syncFiles(journal.Definition); err != nil {
		return err
	}
	if err := d.syncImages(journal.Definition); err != nil { // the container is nothing without them
		return err
	}
	if err := d.config.Volumes.Sync(journal.Definition); err != nil {
		return err
	}
	return journal.Synced()
}

// syncFiles brings to the disk what a container of an engine with a directory of its own has
// written, which may be on another disk. One that has been removed since nobody needs.
func (d *Disk) syncFiles(definition engine.Definition) error {
	if definition.EngineName == "" {
		return nil // it is in the state directory
	}
	ctx, cancel := context.WithTimeout(d.config.Life, d.config.Timeout)
	defer cancel()
	one, err := d.config.Engines.Lookup(definition)
	if err != nil {
		return err
	}
	trees, err := one.Trees(ctx, definition.ID)
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sync files of container %s: %w", definition.Name, err)
	}
	defer files.LetGo(trees)
	for _, tree := range trees {
		if tree.Kind != files.Writable {
			continue // volumes: see volumes.Sync; the private files are in the state directory
		}
		if err := files.Sync(tree.Path); err != nil {
			return err
		}
	}
	return nil
}

// syncImages brings image layers to the disk, which may be an engine's own, and that on another disk.
func (d *Disk) syncImages(definition engine.Definition) error {
	images, err := d.config.Engines.ImagesOf(definition.EngineName)
	if err != nil || images == nil {
		return errors.Join(err, d.config.Images.Sync())
	}
	ctx, cancel := context.WithTimeout(d.config.Life, d.config.Timeout)
	defer cancel()
	return images.Sync(ctx)
}
