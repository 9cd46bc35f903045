// Package account finds out as whom the processes of a container run, from the files of its root file system,
// which belong to the container and are not trusted.
package account

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/regular"
)

const (
	maxAccountBytes = 8 << 20 // of /etc/passwd and /etc/group in an image
	maxID           = 1<<31 - 1
	maxGroups       = 1024
)

// Account is the user a container's process runs as.
type Account struct {
	User specs.User
	Home string
}

// Resolve finds what "", "user", "uid", "user:group" or "uid:gid" means in a container's root
// file system. The files there belong to the container, so they are read without following links
// out of it and within bounds.
func Resolve(rootfs, wanted string) (Account, error) {
	name, group, hasGroup := strings.Cut(wanted, ":")
	result := Account{Home: "/"}
	known, err := lookupPasswd(rootfs, name)
	if err != nil {
		return result, fmt.Errorf("user %q: %w", wanted, err)
	}
	result.User.UID, result.User.GID = known.uid, known.gid
	if known.home != "" {
		result.Home = known.home
	}
	if hasGroup {
		if result.User.GID, err = lookupGroup(rootfs, group); err != nil {
			return result, fmt.Errorf("user %q: %w", wanted, err)
		}
		return result, nil
	}
	if known.name != "" {
		result.User.AdditionalGids, err = groupsOf(rootfs, known.name, known.gid)
	}
	return result, err
}

// passwdEntry is one line of /etc/passwd.
type passwdEntry struct {
	name, home string
	uid, gid   uint32
}

// lookupPasswd finds a user by name or number; a number need not be listed. "" is root.
func lookupPasswd(rootfs, wanted string) (passwdEntry, error) {
	if wanted == "" {
		wanted = "0"
	}
	number, isNumber := parseID(wanted)
	var found *passwdEntry
	err := eachLine(rootfs, "etc/passwd", func(fields []string) bool {
		if len(fields) < 6 {
			return true
		}
		uid, ok := parseID(fields[2])
		gid, ok2 := parseID(fields[3])
		if ok && ok2 && (fields[0] == wanted || isNumber && uid == number) {
			found = &passwdEntry{name: fields[0], home: fields[5], uid: uid, gid: gid}
		}
		return found == nil
	})
	switch {
	case err != nil:
		return passwdEntry{}, err
	case found != nil:
		return *found, nil
	case isNumber:
		return passwdEntry{uid: number}, nil
	}
	return passwdEntry{},
		errors.New("the image's /etc/passwd does not list it; use a number or a name that it has")
}

func lookupGroup(rootfs, wanted string) (uint32, error) {
	number, isNumber := parseID(wanted)
	if isNumber {
		return number, nil
	}
	found, result := false, uint32(0)
	err := eachLine(rootfs, "etc/group", func(fields []string) bool {
		if len(fields) >= 3 && fields[0] == wanted {
			result, found = parseID(fields[2])
		}
		return !found
	})
	if err == nil && !found {
		err = fmt.Errorf("the image's /etc/group does not list group %q; use a number or a name that it has",
			wanted)
	}
	return result, err
}

// groupsOf lists the groups of which a user is a member besides the primary one.
func groupsOf(rootfs, name string, primary uint32) ([]uint32, error) {
	var groups []uint32
	err := eachLine(rootfs, "etc/group", func(fields []string) bool {
		if len(fields) < 4 {
			return true
		}
		for _, member := range strings.Split(fields[3], ",") {
			if gid, ok := parseID(fields[2]); ok && member == name && gid != primary {
				groups = append(groups, gid)
				break
			}
		}
		return len(groups) < maxGroups
	})
	return groups, err
}

func parseID(s string) (uint32, bool) {
	id, err := strconv.ParseUint(s, 10, 32)
	return uint32(id), err == nil && id <= maxID
}

// eachLine calls visit with the fields of each line until it returns false. A missing file has no lines.
func eachLine(rootfs, name string, visit func(fields []string) bool) error {
	file, err := openInside(rootfs, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open /%s in the container: %w", name, err)
	}
	defer file.Close()
	scanner := bufio.NewScanner(io.LimitReader(file, maxAccountBytes))
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		line := strings.TrimSpace(scanner.Text())
		if line != "" && line[0] != '#' && !visit(strings.Split(line, ":")) {
			return nil
		}
	}
	if err := scanner.Err(); err != nil {
		return fmt.Errorf("read /%s in the container: %w", name, err)
	}
	return nil
}

// openInside opens a regular file in a container's root file system. Links are followed as the
// container would see them and never lead out of it (openat2(2), RESOLVE_IN_ROOT, Linux 5.6); a
// fifo or a device is refused, and not opened.
func openInside(rootfs, name string) (*os.File, error) {
	root, err := unix.Open(rootfs, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: rootfs, Err: err}
	}
	defer unix.Close(root)
	return regular.Openat(root, name, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS, 0)
}
