package kernel

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Watch is a file or directory that an instance of inotify or fanotify watches.
type Watch struct {
	Device, Inode uint64
	Mask          uint32 // events, as in inotify(7); the common ones have the same bits in fanotify(7)
}

// Watches are the watches of an instance of inotify or fanotify.
type Watches struct {
	Files []Watch
	// Systems are the devices of whole file systems that fanotify watches (FAN_MARK_FILESYSTEM).
	Systems []uint64
}

// ReadWatches reads the watches of descriptor fd of a process. Error: fs.ErrNotExist when it is gone.
func ReadWatches(pid, fd int) (Watches, error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, fd))
	if err != nil {
		return Watches{}, WhenGone(err)
	}
	defer file.Close()
	var all Watches
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		all.parse(lines.Text())
	}
	return all, WhenGone(lines.Err())
}

// parse adds the watch in a line of /proc/PID/fdinfo/FD (fs/notify/fdinfo.c), if there is one:
//
//	inotify wd:1 ino:2a sdev:fd00001 mask:100 ...
//	fanotify ino:2a sdev:fd00001 mflags:0 mask:20 ...
//	fanotify sdev:fd00001 mflags:0 mask:20 ...
//
// A watch of a mount has a mount ID instead, and is left out.
func (w *Watches) parse(line string) {
	kind, rest, _ := strings.Cut(line, " ")
	if kind != "inotify" && kind != "fanotify" {
		return
	}
	numbers := map[string]uint64{}
	for field := range strings.FieldsSeq(rest) {
		name, value, _ := strings.Cut(field, ":")
		if name != "ino" && name != "sdev" && name != "mask" {
			continue
		}
		number, err := strconv.ParseUint(value, 16, 64)
		if err != nil {
			return
		}
		numbers[name] = number
	}
	inode, isFile := numbers["ino"]
	device, hasDevice := numbers["sdev"]
	if !hasDevice {
		return
	}
	// The kernel's own encoding of devices: 12 bits of major, 20 of minor.
	device = unix.Mkdev(uint32(device>>20), uint32(device&(1<<20-1)))
	if isFile {
		w.Files = append(w.Files, Watch{Device: device, Inode: inode, Mask: uint32(numbers["mask"])})
	} else {
		w.Systems = append(w.Systems, device)
	}
}
