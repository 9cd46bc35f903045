package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// maxWatchSearch bounds how many files are examined to find the watched ones.
const maxWatchSearch = 2_000_000

// fileID identifies a watched file.
type fileID struct {
	device, inode uint64
}

// watchedPaths finds the files that inotify and fanotify watch for a container, as paths in the container.
// CRIU needs them because it cannot find them itself on an overlay, which has no file handles to open.
// watchedPaths walks the container's file systems, so it must not be called while the container is frozen.
// Most containers watch nothing; then it walks nothing.
func watchedPaths(ctx context.Context, init int, pids []int) ([]string, error) {
	wanted := map[fileID]bool{}
	for _, pid := range pids {
		if err := addWatched(pid, wanted); err != nil {
			return nil, fmt.Errorf("read the watches of process %d: %w", pid, err)
		}
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	root := fmt.Sprintf("/proc/%d/root", init)
	found, err := findFiles(ctx, root, wanted)
	if err != nil {
		return nil, fmt.Errorf("find the files that the container watches: %w", err)
	}
	return found, nil
}

// addWatched adds the files that one process watches. An ended process watches nothing.
func addWatched(pid int, wanted map[fileID]bool) error {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		target, err := os.Readlink(filepath.Join(dir, entry.Name()))
		fd, invalid := strconv.Atoi(entry.Name())
		if err != nil || invalid != nil || target != "anon_inode:inotify" &&
			target != "anon_inode:[fanotify]" {
			continue
		}
		watches, err := kernel.ReadWatches(pid, fd)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, w := range watches.Files {
			wanted[fileID{w.Device, w.Inode}] = true
		}
	}
	return nil
}

// findFiles walks a container's file systems, without /proc and /sys, until it has found all wanted files.
// Its result has files before directories, because CRIU searches everything below a directory before it
// takes the next.
func findFiles(ctx context.Context, root string, wanted map[fileID]bool) ([]string, error) {
	var directories, others []string
	left, seen := len(wanted), 0
	err := filepath.WalkDir(root+"/", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil // it is gone, or cannot be read: if it is watched, CRIU reports it
		}
		inside := "/" + strings.TrimPrefix(strings.TrimPrefix(path, root), "/")
		if inside == "/proc" || inside == "/sys" {
			return fs.SkipDir
		}
		if seen++; seen > maxWatchSearch || ctx.Err() != nil {
			return errors.Join(ctx.Err(), fmt.Errorf("not found among %d files", seen))
		}
		var stat unix.Stat_t
		if unix.Lstat(path, &stat) != nil || !wanted[fileID{stat.Dev, stat.Ino}] {
			return nil
		}
		if entry.Type()&fs.ModeSymlink != 0 {
			return fmt.Errorf("%s: inotify watches the symbolic link itself (IN_DONT_FOLLOW), and CRIU "+
				"would watch the link's target: "+
				"turn the feature off in the application", inside)
		}
		if entry.IsDir() {
			directories = append(directories, inside)
		} else {
			others = append(others, inside)
		}
		if left--; left == 0 {
			return fs.SkipAll
		}
		return nil
	})
	// Of two directories, the inner one first, because it has less below it.
	slices.SortStableFunc(directories,
		func(a, b string) int { return strings.Count(b, "/") - strings.Count(a, "/") })
	return append(others, directories...), err
}
