package criu

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	filelock "github.com/checkpoint-restore/go-criu/v7/crit/images/file-lock"
	"google.golang.org/protobuf/proto"

	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/inject"
)

// A process loses its lock on a part of a file (fcntl(2)) when it closes any descriptor of that file. CRIU
// takes these locks and then opens, maps and closes the files that the process maps (criu/cr-restore.c,
// restore_one_alive_task; pie/restorer.c, restore_mapping), so the locks on them are lost. SQLite has such
// locks on the index of a write-ahead log. So missing locks are taken again when all files are mapped,
// before any of the processes runs.

const (
	locksName      = "filelocks.img"
	imageFileLocks = 0x54323616 // FILE_LOCKS_MAGIC of criu/include/magic.h
	lockPOSIX      = 1          // FL_POSIX of criu/include/file-lock.h
	lockWrite      = 1          // F_WRLCK

	maxRecordLocks = 1 << 20
)

// dumpedLocks returns the POSIX locks of a dump by process, with the PIDs that the processes see
// themselves.
func dumpedLocks(imagesDir string) (map[int][]kernel.RecordLock, error) {
	locks, count := map[int][]kernel.RecordLock{}, 0
	err := eachEntry(filepath.Join(imagesDir, locksName), imageFileLocks, func(data []byte) error {
		var one filelock.FileLockEntry
		if err := proto.Unmarshal(data, &one); err != nil {
			return err
		}
		if one.GetFlag()&lockPOSIX == 0 {
			return nil
		}
		if count++; count > maxRecordLocks || one.GetFd() < 0 || one.GetStart() < 0 || one.GetLen() < 0 {
			return errImage
		}
		lock := kernel.RecordLock{FD: int(one.GetFd()), Write: one.GetType() == lockWrite,
			Start: one.GetStart(), Length: one.GetLen()}
		locks[int(one.GetPid())] = append(locks[int(one.GetPid())], lock)
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the locks of the dump: %w", err)
	}
	return locks, nil
}

// retakeLocks takes the locks that restored processes have lost, and verifies that all locks are held. root
// is the first process.
func retakeLocks(root int, locks map[int][]kernel.RecordLock) error {
	pids, err := descendants(root)
	if err != nil {
		return fmt.Errorf("list the restored processes: %w", err)
	}
	for _, pid := range pids {
		process, err := kernel.ReadProcess(pid)
		if err != nil {
			return err
		}
		lost, err := missingLocks(pid, locks[process.NamespaceID])
		if err == nil && len(lost) > 0 {
			if err = inject.TakeRecordLocks(pid, lost); err == nil {
				lost, err = missingLocks(pid, lost)
			}
		}
		if err != nil {
			return fmt.Errorf("process %d of the container: %w", process.NamespaceID, err)
		}
		if len(lost) > 0 {
			return fmt.Errorf("process %d of the container: its lock on descriptor %d was lost again",
				process.NamespaceID, lost[0].FD)
		}
		delete(locks, process.NamespaceID)
	}
	for pid := range locks {
		return fmt.Errorf("process %d of the container, which has locks, was not restored", pid)
	}
	return nil
}

// missingLocks returns those of the locks that a process does not hold.
func missingLocks(pid int, locks []kernel.RecordLock) ([]kernel.RecordLock, error) {
	has := map[int][]kernel.RecordLock{}
	var missing []kernel.RecordLock
	for _, lock := range locks {
		if _, known := has[lock.FD]; !known {
			var err error
			if has[lock.FD], err = kernel.RecordLocks(pid, lock.FD); err != nil {
				return nil, err
			}
		}
		if !slices.Contains(has[lock.FD], lock) {
			missing = append(missing, lock)
		}
	}
	return missing, nil
}

// descendants lists a process, its children, their children and so on. None of them may end meanwhile.
func descendants(pid int) ([]int, error) {
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", all[i]))
		if err != nil {
			return nil, err
		}
		for _, list := range lists {
			data, err := os.ReadFile(list)
			if err != nil {
				return nil, err
			}
			for field := range strings.FieldsSeq(string(data)) {
				child, err := strconv.Atoi(field)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", list, err)
				}
				all = append(all, child)
			}
		}
	}
	return all, nil
}
