package admission

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/migration"
)

// comingFiles is what a source says of the files that come with a container.
type comingFiles struct {
	volumes map[string]migration.VolumeMoved // those that are on a disk, or in memory, of their own
	rest    int64                            // bytes of all others
	memory  int64                            // bytes in tmpfs volumes
}

// comingOf reads what an offer says of files. Nothing in it can make the sum of them less than TreesBytes.
func comingOf(definition engine.Definition, offer *api.Offer) (comingFiles, error) {
	c := comingFiles{volumes: map[string]migration.VolumeMoved{}, rest: offer.TreesBytes}
	var told []migration.VolumeMoved
	if err := envelopes.DecodeList(offer.VolumesJson, &told); err != nil {
		return c, fmt.Errorf("%w: volumes: %w", api.ErrInvalid, err)
	}
	for _, one := range told {
		if one.Bytes < 0 || one.Files < 0 || one.Bytes > c.rest {
			return c, fmt.Errorf("%w: volume %.80q of %d bytes in %d files, more than all files",
				api.ErrInvalid, one.Volume, one.Bytes, one.Files)
		}
		for _, v := range definition.Volumes {
			if v.Key() != one.Volume || v.Stays {
				continue
			}
			c.rest -= one.Bytes
			if v.Sort() == engine.Tmpfs {
				c.memory += one.Bytes
			}
			c.volumes[one.Volume] = one
		}
	}
	return c, nil
}

// diskNeed is what comes to one file system.
type diskNeed struct {
	place        string // a directory of it
	bytes, files int64
}

// examineDisks compares what comes with the room on the file systems to which it comes.
func (a *Admission) examineDisks(definition engine.Definition, coming comingFiles,
	dryRun bool) ([]migration.Problem, error) {
	disks := map[uint64]*diskNeed{}
	need := func(place string, bytes, files int64) error {
		place, device, err := diskOf(place)
		if err != nil {
			return err
		}
		if disks[device] == nil {
			disks[device] = &diskNeed{place: place}
		}
		disks[device].bytes += bytes
		disks[device].files += files
		return nil
	}
	own, others := a.kept.Bytes(definition.ID)
	if err := need(a.stateDir, coming.rest-own, 0); err != nil {
		return nil, err
	}
	for _, v := range definition.Volumes {
		moved, comes := coming.volumes[v.Key()]
		if !comes || v.Sort() == engine.Tmpfs {
			continue
		}
		path, err := a.engines.VolumePath(v)
		if err != nil {
			continue // the engine refuses it, with a reason
		}
		if err := need(path, moved.Bytes, moved.Files); err != nil {
			return nil, err
		}
	}
	_, keptOn, err := diskOf(a.stateDir)
	if err != nil {
		return nil, err
	}
	var problems []migration.Problem
	for device, disk := range disks {
		if device == keptOn && a.yields(definition.ID, disk, others, dryRun) {
			continue
		}
		if err := errors.Join(files.CheckSpace(disk.place, disk.bytes),
			checkFiles(disk.place, disk.files)); err != nil {
			problems = append(problems, migration.Problem{
				What: "disk of " + a.node, Why: err.Error(),
				Remedy: "free space there, or choose another node",
			})
		}
	}
	return problems, nil
}

// yields reports whether there is room only without what is kept of other containers' broken
// migrations, and removes that then.
func (a *Admission) yields(container string, disk *diskNeed, kept int64, dryRun bool) bool {
	var short *files.NoSpaceError
	if kept == 0 || !errors.As(files.CheckSpace(disk.place, disk.bytes), &short) ||
		short.Needed-short.Free > kept {
		return false
	}
	if dryRun {
		return true
	}
	a.kept.Yield(container, short.Needed-short.Free)
	return false
}

// diskOf finds the file system to which a path belongs that may not be there yet.
func diskOf(path string) (there string, device uint64, err error) {
	var stat unix.Stat_t
	for there = path; ; there = filepath.Dir(there) {
		err = unix.Stat(there, &stat)
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) || there == "/" {
			break
		}
	}
	if err != nil {
		err = &os.PathError{Op: "stat", Path: there, Err: err}
	}
	return there, stat.Dev, err
}

// checkFiles reports whether a file system has room for so many files more. Those that make inodes as
// they need them count none.
func checkFiles(place string, needed int64) error {
	var stat unix.Statfs_t
	if err := unix.Statfs(place, &stat); err != nil {
		return fmt.Errorf("ask for free inodes at %s: %w", place, err)
	}
	if stat.Files == 0 || int64(stat.Ffree) >= needed {
		return nil
	}
	return fmt.Errorf("not enough inodes at %s: %d are needed, %d are free", place, needed, stat.Ffree)
}

// examineTmpfs finds tmpfs volumes without a size whose content does not fit into what the kernel
// gives one here: half of the memory (tmpfs(5)).
func (a *Admission) examineTmpfs(definition engine.Definition, coming comingFiles) []migration.Problem {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return nil
	}
	half := int64(info.Totalram) * int64(info.Unit) / 2
	var problems []migration.Problem
	for _, v := range definition.Volumes {
		moved := coming.volumes[v.Key()]
		limit := half
		if v.SizeBytes > 0 {
			limit = v.SizeBytes
		}
		if v.Sort() == engine.Tmpfs && moved.Bytes > limit {
			problems = append(problems, migration.Problem{
				What: v.String(), Why: fmt.Sprintf("it holds %d MiB, and has room for %d MiB on %s",
					moved.Bytes>>20, limit>>20, a.node),
				Remedy: "remove some of its files, or choose another node",
			})
		}
	}
	return problems
}
