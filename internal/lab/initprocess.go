package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// initSpec is the input of a machine's init, a file in its run directory.
type initSpec struct {
	Lab       string      `json:"lab"`
	Machine   string      `json:"machine"`
	Program   string      `json:"program"`
	Helper    string      `json:"helper"`
	Node      bool        `json:"node"` // a node with its own state directory; otherwise a client
	StateSize int64       `json:"state_size_bytes"`
	Cgroups   []hierarchy `json:"cgroups"`
	Mounted   []hierarchy `json:"mounted"` // hierarchies that it sees
}

// readyFD is where the init reports that the machine is up, or why not.
const readyFD = 3

// ready is the init's report of success.
const ready = "ready"

func specPath(lab, machine string) string {
	return filepath.Join(machineDirectory(lab, machine), "init.json")
}

func readSpec(path string) (initSpec, error) {
	var spec initSpec
	data, err := os.ReadFile(path)
	if err != nil {
		return spec, err
	}
	return spec, json.Unmarshal(data, &spec)
}

// runInit is the first process of a machine. It runs twice: once to enter its cgroups, and once more, as
// the same process, in a cgroup namespace whose root is there. The second run is needed because a thread,
// not a process, leaves a namespace, and only exec turns that thread into the whole process.
func runInit(lab, machine, stage string) error {
	ready := os.NewFile(readyFD, "ready")
	err := initStage(lab, machine, stage)
	if err != nil {
		fmt.Fprintf(ready, "%v", err)
		return err
	}
	fmt.Fprint(ready, "ready")
	if err := ready.Close(); err != nil {
		return err
	}
	return reap()
}

func initStage(lab, machine, stage string) error {
	spec, err := readSpec(specPath(lab, machine))
	if err != nil {
		return fmt.Errorf("init of %s: %w", machine, err)
	}
	if stage == "enter" {
		return enterCgroups(spec)
	}
	unix.CloseOnExec(readyFD)
	if err := setupMachine(spec); err != nil {
		return fmt.Errorf("init of %s: %w", machine, err)
	}
	return nil
}

func enterCgroups(spec initSpec) error {
	for _, h := range spec.Cgroups {
		if err := h.enter(spec.Lab, spec.Machine); err != nil {
			return fmt.Errorf("init of %s: %w", spec.Machine, err)
		}
	}
	lockThread()
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("init of %s: new cgroup namespace: %w", spec.Machine, err)
	}
	args := []string{"godwit-lab", "lab-init", spec.Lab, spec.Machine, "run"}
	err := unix.Exec(spec.Helper, args, os.Environ())
	return fmt.Errorf("init of %s: exec %s: %w", spec.Machine, spec.Helper, err)
}

// reap waits for every process of the machine that has lost its parent, as long as the machine lives.
func reap() error {
	// The first process of a PID namespace gets only signals that it handles; those of a terminal are not
	// for it.
	signal.Ignore(unix.SIGINT, unix.SIGHUP, unix.SIGQUIT)
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	for {
		_, err := unix.Wait4(-1, nil, 0, nil)
		switch {
		case err == nil, errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ECHILD):
			<-children
		default:
			return fmt.Errorf("wait for children: %w", err)
		}
	}
}
