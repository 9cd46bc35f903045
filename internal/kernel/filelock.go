package kernel

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// RecordLock is a lock on a part of a file that belongs to a process (fcntl(2), F_SETLK).
type RecordLock struct {
	FD     int // descriptor by which the process has taken it
	Write  bool
	Start  int64
	Length int64 // 0: to the end of the file, however long that becomes
}

// RecordLocks lists the locks that a process has taken by one of its descriptors (proc_pid_fdinfo(5)).
func RecordLocks(pid, fd int) ([]RecordLock, error) {
	info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, fd))
	if err != nil {
		return nil, fmt.Errorf("look for locks of process %d: %w", pid, err)
	}
	var locks []RecordLock
	for line := range strings.Lines(string(info)) {
		if text, ok := strings.CutPrefix(line, "lock:"); ok {
			lock, ok, err := parseRecordLock(text)
			if err != nil {
				return nil, fmt.Errorf("look for locks of process %d: %w", pid, err)
			}
			if lock.FD = fd; ok {
				locks = append(locks, lock)
			}
		}
	}
	return locks, nil
}

// parseRecordLock parses a line such as "1: POSIX ADVISORY WRITE 4711 00:2b:55 0 EOF". It ignores locks of
// other kinds.
func parseRecordLock(text string) (lock RecordLock, ok bool, err error) {
	fields := strings.Fields(text)
	if len(fields) != 8 {
		return lock, false, fmt.Errorf("a lock has an unknown format: %.200q", text)
	}
	if fields[1] != "POSIX" {
		return lock, false, nil
	}
	lock.Write = fields[3] == "WRITE"
	if lock.Start, err = strconv.ParseInt(fields[6], 10, 64); err != nil {
		return lock, false, err
	}
	if fields[7] != "EOF" {
		var end int64
		end, err = strconv.ParseInt(fields[7], 10, 64)
		lock.Length = end - lock.Start + 1
	}
	return lock, err == nil, err
}
