package kept

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/migration"
)

// DefaultKeep is how long files stay that came by a migration that failed.
const DefaultKeep = 24 * time.Hour

const (
	keptLeastBytes = 4 << 20 // less is sent again sooner than it is worth a place in a list
	keptFreeShare  = 20      // of a disk: when less is free, what is kept goes
	keptRecord     = "copy.json"
	keptDoomed     = ".removing-" // begins the name of a directory that is being removed
)

// Copies are the files of containers whose migration to this node failed before they ran here:
// so much the next attempt need not send. They lie beside the containers, in a directory that
// nobody else may enter, and can be given up at any time. What is in them is read before it is used
// (copies.Mirror.Have), so nothing depends on how they came to be what they are.
type Copies struct {
	dir  string
	keep time.Duration // 0: nothing is kept
	full func() bool   // the disk has so little room that nothing should be kept
	log  *slog.Logger

	removing sync.WaitGroup

	mu  sync.Mutex
	all map[string]*Copy // by container
}

// Copy is what there is of one container. Its directory has one for each tree, named by its number.
type Copy struct {
	Migration   string    `json:"migration"` // that failed last
	Container   string    `json:"container"`
	ContainerID string    `json:"container_id"`
	Source      string    `json:"source"`
	Broke       time.Time `json:"broke"`
	Trees       []Tree    `json:"trees"`
	Bytes       int64     `json:"bytes"`
	Files       int64     `json:"files"`

	used bool // by a migration
}

// Tree is a tree of a copy.
type Tree struct {
	Kind files.TreeKind `json:"kind"`
	Name string         `json:"name"`
}

// Config is where copies lie, and for how long.
type Config struct {
	StateDir string
	Keep     time.Duration // 0: nothing is kept
	// Full reports whether the disk has so little room that nothing should be kept; nil: by its free share.
	Full func() bool
	Log  *slog.Logger
}

// New finds what an earlier agent has kept.
func New(c Config) (*Copies, error) {
	k := &Copies{
		dir: filepath.Join(c.StateDir, "kept"), keep: c.Keep, full: c.Full, log: c.Log,
		all: map[string]*Copy{},
	}
	if k.full == nil {
		k.full = func() bool {
			var stat unix.Statfs_t
			return unix.Statfs(k.dir, &stat) == nil && stat.Bavail < stat.Blocks/keptFreeShare
		}
	}
	if err := os.MkdirAll(k.dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory for files of broken migrations: %w", err)
	}
	if err := os.Chmod(k.dir, 0o700); err != nil {
		return nil, fmt.Errorf("protect the directory for files of broken migrations: %w", err)
	}
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		return nil, fmt.Errorf("files of broken migrations: %w", err)
	}
	for _, entry := range entries {
		one, err := k.read(entry.Name())
		if err != nil {
			k.log.Info("what is left of the files of a broken migration is removed", "name", entry.Name(),
				"error", err)
			k.remove(entry.Name())
			continue
		}
		k.all[one.ContainerID] = one
	}
	k.Expire(time.Now())
	return k, nil
}

// Keeps reports whether anything is kept.
func (k *Copies) Keeps() bool { return k.keep > 0 }

// read reads the record of a copy.
func (k *Copies) read(name string) (*Copy, error) {
	if err := migration.CheckContainerID(name); err != nil {
		return nil, err
	}
	one := &Copy{}
	if err := durable.Load(filepath.Join(k.dir, name, keptRecord), one); err != nil {
		return nil, err
	}
	if one.ContainerID != name {
		return nil, errors.New("it belongs to another container")
	}
	return one, nil
}

func (k *Copies) place(container string) string { return filepath.Join(k.dir, container) }

func (k *Copies) tree(container string, i int) string {
	return filepath.Join(k.place(container), strconv.Itoa(i))
}

// write makes a record durable enough: what it is about may be gone after a crash, and then it is nothing.
func (k *Copies) write(one *Copy) error {
	return durable.Save(filepath.Join(k.place(one.ContainerID), keptRecord), one)
}

// Begin makes a place for the files of a migration that has failed, or finds what that went on
// from; nil: another one has left something, from which it did not go on, and that stays.
func (k *Copies) Begin(spec migration.Spec) (*Copy, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	one := k.all[spec.Container]
	if one != nil && one.Migration != spec.ID {
		return nil, nil
	}
	if one == nil {
		one = &Copy{Migration: spec.ID, Container: spec.Name, ContainerID: spec.Container,
			Source: spec.Source, Broke: time.Now().UTC()}
		if err := os.Mkdir(k.place(spec.Container), 0o700); err != nil {
			return nil, err
		}
		k.all[spec.Container] = one
	}
	one.used = true
	return one, k.write(one)
}

// Take moves what there is of a tree to its place here.
func (k *Copies) Take(one *Copy, tree files.Tree) error {
	i := slices.Index(one.Trees, Tree{tree.Kind, tree.Name})
	if i < 0 {
		i = len(one.Trees)
		one.Trees = append(one.Trees, Tree{tree.Kind, tree.Name})
		if err := k.write(one); err != nil {
			return err
		}
	}
	place := k.tree(one.ContainerID, i)
	if err := os.Mkdir(place, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	err := files.MoveContent(tree.Path, place)
	if errors.Is(err, unix.EXDEV) {
		return nil // it is on a disk of its own: that content is not kept
	}
	return err
}

// Assess measures the files that were kept, and reports whether they are worth keeping.
func (k *Copies) Assess(one *Copy, measure func(path string) (files.Size, error)) (bool, error) {
	one.Broke, one.Bytes, one.Files = time.Now().UTC(), 0, 0
	for i := range one.Trees {
		size, err := measure(k.tree(one.ContainerID, i))
		if err != nil {
			return false, err
		}
		one.Bytes += size.Bytes
		one.Files += size.Entries - 1 // but the root
	}
	if one.Bytes < keptLeastBytes || k.full() {
		return false, nil
	}
	return true, k.write(one)
}

// Use finds what is kept of a container for a migration, until it is released. Nil: there is nothing.
func (k *Copies) Use(container string) *Copy {
	k.mu.Lock()
	defer k.mu.Unlock()
	one := k.all[container]
	if one == nil || one.used {
		return nil
	}
	one.used = true
	return one
}

// Trees are those of a copy that is used by a migration, which it belongs to from now on.
func (k *Copies) Trees(one *Copy, id string) ([]files.Tree, error) {
	k.mu.Lock()
	one.Migration = id
	k.mu.Unlock()
	var trees []files.Tree
	for i, tree := range one.Trees {
		trees = append(trees, files.Tree{Kind: tree.Kind, Name: tree.Name, Path: k.tree(one.ContainerID, i)})
	}
	return trees, k.write(one)
}

// Release ends a use.
func (k *Copies) Release(one *Copy) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if one != nil {
		one.used = false
	}
}

// Drop removes what is kept of a container, unless a migration uses it. It tells whether there was something.
func (k *Copies) Drop(container string) bool {
	k.mu.Lock()
	one := k.all[container]
	unused := one != nil && !one.used
	if unused {
		delete(k.all, container)
	}
	k.mu.Unlock()
	if unused {
		k.remove(container)
	}
	return unused
}

// End ends a use by removing what was used. Nil has nothing to end.
func (k *Copies) End(one *Copy) {
	k.Release(one)
	if one != nil {
		k.Drop(one.ContainerID)
	}
}

// remove removes a directory. It has another name at once; that nothing of it is left may take
// long, and nobody waits for that who does not want its room.
func (k *Copies) remove(name string) {
	doomed := name
	if !strings.HasPrefix(name, keptDoomed) {
		id := make([]byte, 8)
		_, _ = rand.Read(id) // never fails (crypto/rand)
		doomed = keptDoomed + hex.EncodeToString(id)
		if err := os.Rename(filepath.Join(k.dir, name), filepath.Join(k.dir, doomed)); err != nil {
			k.log.Warn("cannot remove files of a broken migration", "error", err)
			return
		}
	}
	k.removing.Go(func() {
		err := guard.Do(func() error { return files.RemoveTree(filepath.Join(k.dir, doomed)) })
		if err != nil {
			k.log.Warn("cannot remove files of a broken migration; the next agent tries again", "error", err)
		}
	})
}

// List is all that nobody uses, the oldest first.
func (k *Copies) List() []Copy {
	k.mu.Lock()
	defer k.mu.Unlock()
	var list []Copy
	for _, one := range k.all {
		if !one.used {
			list = append(list, *one)
		}
	}
	slices.SortFunc(list, func(a, b Copy) int {
		return cmp.Or(a.Broke.Compare(b.Broke), cmp.Compare(a.ContainerID, b.ContainerID))
	})
	return list
}

// Bytes is how much is kept, of a container and of others.
func (k *Copies) Bytes(container string) (own, others int64) {
	for _, one := range k.List() {
		if one.ContainerID == container {
			own += one.Bytes
		} else {
			others += one.Bytes
		}
	}
	return own, others
}

// Yield gives up what is kept of other containers, the oldest first, until so many bytes are free.
func (k *Copies) Yield(container string, bytes int64) {
	for _, one := range k.List() {
		if bytes > 0 && one.ContainerID != container && k.Drop(one.ContainerID) {
			bytes -= one.Bytes
			k.log.Info("removing files of a broken migration: their disk space is needed", "container",
				one.Container, "bytes", one.Bytes)
		}
	}
	k.removing.Wait()
}

// Expire removes what has been kept for long enough, and, if the disk is full, the oldest.
func (k *Copies) Expire(now time.Time) {
	for _, one := range k.List() {
		switch {
		case now.After(one.Broke.Add(k.keep)):
			k.Drop(one.ContainerID)
		case k.full():
			k.log.Info("removing files of a broken migration: the disk is almost full", "container",
				one.Container, "bytes", one.Bytes)
			k.Drop(one.ContainerID)
		}
	}
}

// Elsewhere removes what is kept of a container that is at another node than the one that tried to send it.
func (k *Copies) Elsewhere(container, node string) {
	k.mu.Lock()
	one := k.all[container]
	k.mu.Unlock()
	if one != nil && one.Source != node {
		k.Drop(container)
	}
}

// Describe is a copy as it is told to users. here is the name of this node.
func (k *Copies) Describe(one Copy, here string) migration.Stage {
	return migration.Stage{
		ID: one.Migration, Kind: migration.BrokenCopy, Container: one.Container, ContainerID: one.ContainerID,
		Source: one.Source,
		Target: here, State: migration.StageReady, Started: one.Broke, Fresh: one.Broke,
		Until: one.Broke.Add(k.keep), DiskBytes: one.Bytes,
	}
}
