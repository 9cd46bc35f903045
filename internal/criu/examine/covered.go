package examine

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/criu/descriptors"
	"github.com/godwit/godwit/internal/kernel"
)

// use says how a process uses a file, and how the application can end that.
type use struct{ what, end string }

var (
	asFile      = use{"open file", "close the file"}
	asDirectory = use{"working directory", "leave the directory"}
	asRoot      = use{"root directory", "leave the directory"}
)

// covered finds a used file that cannot be reached by its path, because something was mounted over it. CRIU
// opens files by their paths. It fails to dump such a file (criu/files-reg.c and criu/mount.c of 4.2,
// mnt_is_overmounted), or to restore it if the file is deleted.
func (x *examination) covered(mount kernel.Mount, as use, target string) finding {
	over, is := x.mountOver(mount, strings.TrimSuffix(target, descriptors.DeletedMark))
	if !is {
		return finding{}
	}
	return finding{what: as.what + " below another mount: " + target,
		why:    fmt.Sprintf("the mount at %s hides it, and CRIU opens files by their paths", over.Point),
		remedy: fmt.Sprintf("unmount %s, or have the application %s", over.Point, as.end)}
}

// mountOver finds a mount that hides a path on another mount. The hiding mount is at the path or above it,
// and the other mount is not on it.
func (x *examination) mountOver(mount kernel.Mount, path string) (kernel.Mount, bool) {
	for _, over := range x.mounts {
		same := x.spaces[over.ID] == x.spaces[mount.ID] && over.ID != mount.ID
		if same && over.Point != "/" && isBelow(path, over.Point) && !x.isOn(mount, over) {
			return over, true
		}
	}
	return kernel.Mount{}, false
}

// isBelow reports whether a path is a directory or something in it.
func isBelow(path, directory string) bool {
	rest, ok := strings.CutPrefix(path, directory)
	return ok && (rest == "" || rest[0] == '/')
}

// isOn reports whether a mount is on another one, directly or through other mounts.
func (x *examination) isOn(mount, other kernel.Mount) bool {
	for range x.mounts { // bounded, because a list that was read while mounts changed may have a cycle
		parent, ok := x.mounts[mount.Parent]
		if !ok {
			return false
		}
		if parent.ID == other.ID {
			return true
		}
		mount = parent
	}
	return false
}

// coveredAt is covered for the target of a link in /proc. It queries the kernel for the mount only if some
// mount may hide the path.
func (x *examination) coveredAt(link string, as use, target string) finding {
	if !strings.HasPrefix(target, "/") || !x.mayBeCovered(target) {
		return finding{}
	}
	var stat unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, link, unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &stat)
	if err != nil || stat.Mask&unix.STATX_MNT_ID == 0 {
		return finding{} // gone meanwhile, or a kernel before 5.8
	}
	mount, inside := x.mounts[strconv.FormatUint(stat.Mnt_id, 10)]
	if !inside {
		return finding{}
	}
	bad := x.covered(mount, as, target)
	bad.fd = noFD
	return bad
}

func (x *examination) mayBeCovered(path string) bool {
	for _, m := range x.mounts {
		if m.Point != "/" && isBelow(path, m.Point) {
			return true
		}
	}
	return false
}

// checkDirectories finds working and root directories that are hidden by another mount.
func (x *examination) checkDirectories(t *task) []finding {
	var found []finding
	for _, d := range []struct {
		name string
		as   use
	}{{"cwd", asDirectory}, {"root", asRoot}} {
		link := fmt.Sprintf("/proc/%d/%s", t.PID, d.name)
		target, err := os.Readlink(link)
		if err != nil {
			continue // the process is ending
		}
		if bad := x.coveredAt(link, d.as, target); bad.what != "" {
			found = append(found, bad)
		}
	}
	return found
}
