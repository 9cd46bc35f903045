package examine

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/criu/descriptors"
	"github.com/godwit/godwit/internal/kernel"
)

// fileKey identifies a watched or open file in the format of /proc.
type fileKey struct {
	device, inode uint64
}

// removedFiles are open files whose name was removed, and directories in which CRIU would make a name for
// such a file.
type removedFiles struct {
	files       map[fileKey]string // with their paths
	directories map[fileKey]string // with the path of a file in it that has another name
}

// checkWatches finds watches of inotify and fanotify that CRIU would restore wrongly. For a file without a
// name, CRIU makes a name, adds the watch by it and removes the name: the program sees events, and the
// watch is gone. For a file with another name, CRIU makes a link beside the removed name during the dump.
func (x *examination) checkWatches(t *task, d descriptors.Descriptor) (finding, error) {
	watches, err := kernel.ReadWatches(t.PID, d.FD)
	if err != nil {
		return finding{}, err
	}
	kind := anonymousKind(d.Target)
	if len(watches.Systems) > 0 {
		return finding{what: kind + " watch of a whole file system (FAN_MARK_FILESYSTEM)",
			why: "CRIU does not carry such watches", remedy: "turn the feature off in the application"}, nil
	}
	for _, w := range watches.Files {
		removed := x.removedFiles()
		if path, ok := removed.files[fileKey{w.Device, w.Inode}]; ok {
			return finding{what: kind + " watch of a removed file: " + path,
				why: "CRIU loses such a watch, and the application would see events of names that CRIU " +
					"makes",
				remedy: "try again when the application has closed the file"}, nil
		}
		path, ok := removed.directories[fileKey{w.Device, w.Inode}]
		if ok && w.Mask&(unix.IN_CREATE|unix.IN_DELETE) != 0 {
			return finding{what: fmt.Sprintf("%s watch of %s, where the name of an open file was removed: %s",
				kind, filepath.Dir(path), path),
				why:    "CRIU makes a name for that file there, and the application would see that",
				remedy: "try again when the application has closed the file"}, nil
		}
	}
	return finding{}, nil
}

// removedFiles collects the removed files when they are first needed: few containers watch anything.
func (x *examination) removedFiles() *removedFiles {
	if x.removed != nil {
		return x.removed
	}
	x.removed = &removedFiles{files: map[fileKey]string{}, directories: map[fileKey]string{}}
	for i := range x.tasks {
		for _, d := range x.tasks[i].fds {
			if path, ok := strings.CutSuffix(d.Target, descriptors.DeletedMark); ok &&
				strings.HasPrefix(path, "/") {
				x.addRemoved(&x.tasks[i], d, path)
			}
		}
	}
	return x.removed
}

func (x *examination) addRemoved(t *task, d descriptors.Descriptor, path string) {
	info, err := readFdinfo(t.PID, d.FD)
	if err != nil {
		return // closed meanwhile
	}
	inode, err := strconv.ParseUint(info.values["ino"], 10, 64)
	device, ok := deviceNumber(x.mounts[info.values["mnt_id"]].Device)
	if err != nil || !ok {
		return // no file of the container, or a kernel before 5.14, which does not report it
	}
	x.removed.files[fileKey{device, inode}] = path
	var file, directory unix.Stat_t
	err = errors.Join(unix.Stat(fmt.Sprintf("/proc/%d/fd/%d", t.PID, d.FD), &file),
		unix.Stat(filepath.Join(fmt.Sprintf("/proc/%d/root", x.root.PID), filepath.Dir(path)), &directory))
	if err == nil && file.Nlink > 0 {
		x.removed.directories[fileKey{directory.Dev, directory.Ino}] = path
	}
}

// deviceNumber reads major:minor.
func deviceNumber(text string) (uint64, bool) {
	var major, minor uint32
	if n, err := fmt.Sscanf(text, "%d:%d", &major, &minor); err != nil || n != 2 {
		return 0, false
	}
	return unix.Mkdev(major, minor), true
}
