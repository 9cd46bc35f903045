// Command init is the first process of a virtual machine in which tests run on another kernel
// (scripts/test-kernels.sh).
//
// It mounts what the tests need, loads the modules in /modules, runs the programs of /tests one after the
// other, reports how each ended and switches the machine off. There is nothing else in the machine: no
// shell, no compiler. It knows nothing of the tests.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A line of /tests: a name, the directory in which the program is run, the program, its arguments.
const testList = "/tests"

// workloads is where the tests find the programs that they start.
const workloads = "/tmp/workloads"

func main() {
	if os.Getpid() != 1 {
		if err := run(); err != nil {
			fmt.Println("init:", err)
		}
		return
	}
	if err := start(); err != nil {
		fmt.Println("init:", err)
	}
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Println("init: power off:", err)
	}
	select {}
}

// start prepares the machine and runs the tests in another process, because the first one has to reap
// orphans.
func start() error {
	if err := errors.Join(mounts(), modules()); err != nil {
		return err
	}
	tests := exec.Command("/proc/self/exe")
	tests.Stdout, tests.Stderr = os.Stdout, os.Stderr
	if err := tests.Start(); err != nil {
		return err
	}
	for {
		pid, err := unix.Wait4(-1, nil, 0, nil)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if pid == tests.Process.Pid {
			return nil
		}
	}
}

func mounts() error {
	for _, m := range []struct{ kind, at string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"tmpfs", "/run"},
		{"cgroup2", "/sys/fs/cgroup"},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	return os.Chmod("/tmp", 0o777|os.ModeSticky)
}

func modules() error {
	files, err := filepath.Glob("/modules/*.ko")
	if err != nil {
		return err
	}
	slices.Sort(files)
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		_ = f.Close() // it was only read
		if err != nil {
			return fmt.Errorf("load %s: %w", file, err)
		}
	}
	return nil
}

// run runs the tests; scripts/test-kernels.sh reads the lines that begin with "test-kernels:".
func run() error {
	list, err := os.Open(testList)
	if err != nil {
		return err
	}
	defer list.Close()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return err
	}
	fmt.Println("test-kernels: Linux", unix.ByteSliceToString(name.Release[:]))
	// The root file system has no O_DIRECT; a tmpfs has, on newer kernels.
	if err := os.CopyFS(workloads, os.DirFS("/workloads")); err != nil {
		return err
	}
	failed := 0
	lines := bufio.NewScanner(list)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 3 {
			return fmt.Errorf("%s: a line of fewer than three words: %q", testList, lines.Text())
		}
		began := time.Now()
		test := exec.Command(words[2], words[3:]...)
		test.Dir = words[1]
		test.Env = []string{
			"GODWIT_TEST_WORKLOADS=" + workloads, "GODWIT_TEST_KERNELS=" + os.Getenv("expect"),
			"GODWIT_TEST_OVERLAY=" + os.Getenv("overlay"), "PATH=/bin", "HOME=/tmp", "TMPDIR=/tmp",
		}
		test.Stdout, test.Stderr = os.Stdout, os.Stderr
		result := "passed"
		if err := test.Run(); err != nil {
			result = "failed: " + err.Error()
			failed++
		}
		fmt.Printf("test-kernels: %s %s (%.0f s)\n", words[0], result, time.Since(began).Seconds())
	}
	if err := lines.Err(); err != nil {
		return err
	}
	fmt.Printf("test-kernels: all done, %d failed\n", failed)
	return nil
}
