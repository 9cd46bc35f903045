package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// runEnter runs a program in a node or client and returns its exit code. It runs in a separate process
// because it changes the namespaces of the process. The arguments are LAB MACHINE PID STARTED wait|detach
// CMD…
func runEnter(args []string) (int, error) {
	if len(args) < 6 {
		return 0, errors.New("lab-enter: too few arguments")
	}
	pid, err := strconv.Atoi(args[2])
	if err != nil {
		return 0, fmt.Errorf("lab-enter: pid: %w", err)
	}
	started, err := strconv.ParseUint(args[3], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("lab-enter: start time: %w", err)
	}
	lockThread()
	if err := enterMachine(args[0], args[1], pid, started); err != nil {
		return 0, err
	}
	return runHere(append([]string{nodeHelper, "lab-child", args[1]}, args[4:]...))
}

func enterMachine(lab, name string, pid int, started uint64) error {
	handle, err := unix.PidfdOpen(pid, 0)
	if err != nil || startTime(pid) != started {
		return fmt.Errorf("%s is not running: its init is gone", name)
	}
	defer unix.Close(handle)
	cgroups, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range cgroups {
		if err := h.enter(lab, name); err != nil {
			return fmt.Errorf("enter %s: %w", name, err)
		}
	}
	// Only a thread that shares its working directory with no other thread can enter a mount namespace
	// (setns(2)).
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("enter %s: %w", name, err)
	}
	directory, err := os.Getwd()
	if err != nil {
		directory = "/"
	}
	if err := unix.Setns(handle, namespaces|unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("enter %s: %w", name, err)
	}
	if os.Chdir(directory) != nil { // it may be hidden there
		return os.Chdir("/")
	}
	return nil
}

// runHere starts a program from this thread, in the thread's namespaces, and waits for it.
func runHere(command []string) (int, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2)
	if err := cmd.Start(); err != nil {
		return 127, fmt.Errorf("run %s: %w", command[0], err)
	}
	go passSignals(cmd.Process, signals)
	return exitCode(cmd.Wait())
}

// passSignals forwards signals to the program. A terminal sends its signals to both; this process survives
// them to report how the program ended.
func passSignals(to *os.Process, signals <-chan os.Signal) {
	_, err := unix.IoctlGetTermios(unix.Stdin, unix.TCGETS)
	terminal := err == nil
	for s := range signals {
		if !terminal || (s != unix.SIGINT && s != unix.SIGQUIT) {
			_ = to.Signal(s) // it may have ended
		}
	}
}

// exitCode returns the exit code that a shell would return.
func exitCode(err error) (int, error) {
	var ended *exec.ExitError
	if err == nil {
		return 0, nil
	}
	if !errors.As(err, &ended) {
		return 0, err
	}
	if status, ok := ended.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return ended.ExitCode(), nil
}

// runChild is the first process of a command inside the machine's namespaces: MACHINE wait|detach CMD…. It
// becomes the command, which must die with the process that waits for it outside (Go's own Pdeathsig
// compares process ids, which differ between the namespaces), or it leaves the command to the machine's
// init.
func runChild(args []string) (int, error) {
	if len(args) < 3 {
		return 0, errors.New("lab-child: too few arguments")
	}
	path := append(append([]string{nodePrograms}, engineDirectories(args[0])...), os.Getenv("PATH"))
	if err := os.Setenv("PATH", strings.Join(path, ":")); err != nil {
		return 0, err
	}
	how, command := args[1], args[2:]
	program, err := exec.LookPath(command[0])
	if err != nil {
		return 127, fmt.Errorf("run %s: %w", command[0], err)
	}
	if how == "detach" {
		return 0, detach(program, command)
	}
	lockThread() // the death signal and exec both belong to this thread
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return 0, fmt.Errorf("run %s: %w", command[0], err)
	}
	return 126, fmt.Errorf("run %s: %w", command[0], unix.Exec(program, command, os.Environ()))
}

// envEngines lists the directories of other engines than the system's, in the format of PATH
// (scripts/install-engine.sh). With the name of a node as suffix, as GODWIT_LAB_ENGINES_B, it is for that
// node alone.
const envEngines = "GODWIT_LAB_ENGINES"

// enginePrefixes returns these directories for a node.
func enginePrefixes(node string) []string {
	list, own := os.LookupEnv(envEngines + "_" + strings.ToUpper(node))
	if !own {
		list = os.Getenv(envEngines)
	}
	return slices.DeleteFunc(filepath.SplitList(list), func(prefix string) bool { return prefix == "" })
}

// engineDirectories returns the directories in which a node looks for programs first.
func engineDirectories(node string) []string {
	var all []string
	for _, prefix := range enginePrefixes(node) {
		all = append(all, filepath.Join(prefix, "bin"))
	}
	return all
}

// detach starts a program in its own session and leaves it to the machine's init.
func detach(program string, command []string) error {
	cmd := exec.Command(program, command[1:]...)
	cmd.Args = command
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run %s: %w", command[0], err)
	}
	return nil
}
