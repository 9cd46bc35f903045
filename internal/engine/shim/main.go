package shim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/engine/checkpoint"
)

// Program is the name under which this program is an OCI runtime.
const Program = "godwit-runc"

// Main is the main function of godwit-runc. args are runc's, without the program. It returns the exit code,
// unless it becomes runc.
func Main(args []string) int {
	runc, err := checkpoint.FindRunc()
	code := 0
	if err == nil {
		code, err = serve(parseCall(args), args, runc)
	}
	if err != nil {
		logError(parseCall(args), err)
		fmt.Fprintf(os.Stderr, "%s: %v\n", Program, err)
		return 1
	}
	return code
}

func serve(c call, args []string, runc string) (int, error) {
	dir, err := dirOf(c)
	if err != nil { // a command without a container
		return become(runc, args, nil)
	}
	switch c.command {
	case "create":
		job, err := dir.load()
		if errors.Is(err, fs.ErrNotExist) {
			return become(runc, args, nil)
		}
		if err != nil {
			return 0, fmt.Errorf("cannot read the restore job of this container: %w", err)
		}
		return handler{dir}.restore(c, job)
	case "start":
		job, err := dir.load()
		switch {
		case err == nil && exists(job.Record):
			return 0, nil // it runs since the restore
		case err == nil && job.Early:
			return 0, handler{dir}.startEarly(job)
		}
	case "kill":
		job, err := dir.load()
		if err == nil && job.Early && !exists(job.Record) && criu.EndRestore(dir.Placeholder()) == nil {
			return 0, nil // there is only the PID placeholder
		}
	case "delete":
		if exists(dir.path) {
			return handler{dir}.deleted(runc, args)
		}
	}
	return become(runc, args, nil)
}

// become replaces this process by runc, with these variables in place of its own.
func become(runc string, args, env []string) (int, error) {
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		if err := os.Setenv(name, value); err != nil {
			return 0, err
		}
	}
	err := syscall.Exec(runc, append([]string{"runc"}, args...), os.Environ())
	return 0, fmt.Errorf("run %s: %w", runc, err)
}

// deleted passes a delete on, and removes the leftovers of a container whose arrival is over. Before that,
// its agent removes them, and deleted leaves a mark for the agent.
func (d handler) deleted(runc string, args []string) (int, error) {
	cmd := exec.Command(runc, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	var ended *exec.ExitError
	switch {
	case errors.As(err, &ended):
		return ended.ExitCode(), nil
	case err != nil:
		return 0, fmt.Errorf("run %s: %w", runc, err)
	}
	if d.Waits() {
		if err := os.WriteFile(d.over(), nil, 0o600); err != nil {
			return 0, fmt.Errorf("record that a container has ended: %w", err)
		}
	}
	if d.Waits() { // checked again: an agent that finished before may not have seen the mark
		return 0, nil
	}
	return 0, d.Remove()
}
