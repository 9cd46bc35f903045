package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// leastOOM is the score adjustment with which the kernel's OOM killer never takes a process
// (proc_pid_oom_score_adj(5)).
const leastOOM = -1000

// LowerOOM makes the OOM killer take a process as late as this process may request, and returns the
// previous adjustment. A value below the lowest one that was ever set with privilege for the process,
// mostly 0, takes CAP_SYS_RESOURCE. Error: fs.ErrNotExist when the process is gone.
func LowerOOM(pid int) (was int, err error) {
	if was, err = ReadOOM(pid); err != nil {
		return 0, err
	}
	err = SetOOM(pid, leastOOM)
	if errors.Is(err, fs.ErrPermission) {
		err = nil
		if was > 0 {
			err = SetOOM(pid, 0)
		}
	}
	if errors.Is(err, fs.ErrPermission) { // it has the lowest permitted value
		err = nil
	}
	return was, err
}

// ReadOOM reads the score adjustment of a process.
func ReadOOM(pid int) (int, error) {
	text, err := ReadProc(pid, "oom_score_adj")
	if err != nil {
		return 0, fmt.Errorf("read the OOM score adjustment of process %d: %w", pid, err)
	}
	value, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		return 0, fmt.Errorf("OOM score adjustment of process %d: %w", pid, err)
	}
	return value, nil
}

// SetOOM sets the score adjustment of a process.
func SetOOM(pid, value int) error {
	err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(strconv.Itoa(value)), 0)
	if err != nil {
		return fmt.Errorf("set the OOM score adjustment of process %d: %w", pid, whenGone(err))
	}
	return nil
}
