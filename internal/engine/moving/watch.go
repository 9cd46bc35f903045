package moving

import (
	"bufio"
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
)

// maxWatchSearch bounds how many files are looked at to find those that are watched.
const maxWatchSearch = 2_000_000

// fileID is how the kernel names a watched file in /proc/PID/fdinfo (fs/notify/fdinfo.c).
type fileID struct {
	device, inode uint64
}

// watchedPaths finds the files that inotify watches of a container watch, as paths in the container. It is for CRIU,
// which cannot do so itself on an overlay: there is no file handle to open. It walks the container's file systems, so it
// must not be called while the container is frozen. Most containers watch nothing, and then it walks nothing.
func watchedPaths(ctx context.Context, init int, pids []int) ([]string, error) {
	wanted := map[fileID]bool{}
	for _, pid := range pids {
		if err := addWatched(pid, wanted); err != nil {
			return nil, fmt.Errorf("read inotify watches of process %d: %w", pid, err)
		}
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	root := fmt.Sprintf("/proc/%d/root", init)
	found, err := findFiles(ctx, root, wanted)
	if err != nil {
		return nil, fmt.Errorf("find the files that inotify watches of the container watch: %w", err)
	}
	return found, nil
}

// addWatched adds what one process watches. A process that has ended watches nothing.
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
		if err != nil || target != "anon_inode:inotify" {
			continue
		}
		if err := addWatches(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, entry.Name()), wanted); err != nil {
			return err
		}
	}
	return nil
}

// addWatches reads the watches of one inotify descriptor: "inotify wd:1 ino:2a sdev:fd00001 mask:...".
func addWatches(path string, wanted map[fileID]bool) error {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if id, ok := parseWatch(lines.Text()); ok {
			wanted[id] = true
		}
	}
	return lines.Err()
}

// parseWatch reads a line about a watch. Devices are in the kernel's own encoding: 12 bits of major, 20 of minor.
func parseWatch(line string) (fileID, bool) {
	if !strings.HasPrefix(line, "inotify ") {
		return fileID{}, false
	}
	var id fileID
	seen := 0
	for field := range strings.FieldsSeq(line) {
		name, value, _ := strings.Cut(field, ":")
		if name != "ino" && name != "sdev" {
			continue
		}
		number, err := strconv.ParseUint(value, 16, 64)
		if err != nil {
			return fileID{}, false
		}
		seen++
		if name == "ino" {
			id.inode = number
		} else {
			id.device = unix.Mkdev(uint32(number>>20), uint32(number&(1<<20-1)))
		}
	}
	return id, seen == 2
}

// findFiles walks a container's file systems, without /proc and /sys, until all wanted files are found. Files come
// before directories in the answer: CRIU looks through all below a directory before it takes the next.
func findFiles(ctx context.Context, root string, wanted map[fileID]bool) ([]string, error) {
	var directories, others []string
	left, seen := len(wanted), 0
	err := filepath.WalkDir(root+"/", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil // it went away, or cannot be looked into: if it is watched CRIU says so
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
	// Of two directories the inner one first: it has less below it.
	slices.SortStableFunc(directories, func(a, b string) int { return strings.Count(b, "/") - strings.Count(a, "/") })
	return append(others, directories...), err
}
