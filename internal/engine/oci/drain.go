package oci

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Output of a container goes through a pipe to its shim or monitor, with Docker also through a fifo to the
// daemon, and into the log. The pipe and the fifo can be examined. Whether the last reader has written
// everything that it has read can be seen only from the log, when it stops growing.
const (
	drainPause = time.Millisecond
	drainQuiet = 5 * time.Millisecond
	// drainPatience limits how long an engine that does not read may keep the container frozen.
	drainPatience = 2 * time.Second
)

// drained waits until all output of a frozen container has been read and, as far as can be seen, is in its
// log.
func (a alive) drained(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, drainPatience)
	defer cancel()
	size, since := int64(-1), time.Now()
	for {
		unread, err := a.unread()
		if err != nil {
			return fmt.Errorf("look for unread output of container %s: %w", a.found.name(), err)
		}
		if now := logSize(a.log); unread > 0 || now != size {
			size, since = now, time.Now()
		} else if time.Since(since) >= drainQuiet {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("container %s: its output is not being read: %w", a.found.name(), ctx.Err())
		case <-time.After(drainPause):
		}
	}
}

// unread returns how much of the container's output has not been read yet.
func (a alive) unread() (bytes int, err error) {
	dir := fmt.Sprintf("/proc/%d/fd", a.reader)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		target, err := os.Readlink(path)
		if err != nil {
			continue // closed meanwhile
		}
		fifo := strings.HasSuffix(target, "/init-stdout") || strings.HasSuffix(target, "/init-stderr")
		if !fifo && (target == "" || !slices.Contains(a.stdio, target)) {
			continue
		}
		bytes += waiting(path)
	}
	return bytes, nil
}

// waiting returns how many bytes can be read from a pipe.
func waiting(path string) int {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0 // no longer a pipe
	}
	defer unix.Close(fd)
	n, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil {
		return 0
	}
	return n
}

func logSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0 // another log driver
	}
	return info.Size()
}
