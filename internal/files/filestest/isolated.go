package filestest

import (
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// inNamespace is the variable by which a test program knows that it has restarted itself.
const inNamespace = "GODWIT_TEST_NAMESPACE"

// Isolated runs tests in a mount namespace of their own, and in others that are given as flags
// (CLONE_NEWNET), so that none of their mounts can stay behind. It returns the program's exit code.
func Isolated(others int, run func() int) int {
	if err := isolate(others); err != nil {
		fmt.Fprintf(os.Stderr, "these tests need root, to make namespaces: %v\n", err)
		return 1
	}
	return run()
}

func isolate(others int) error {
	if os.Getenv(inNamespace) != "" {
		return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	}
	runtime.LockOSThread() // the new program begins where this thread is
	if err := unix.Unshare(unix.CLONE_NEWNS | others); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), inNamespace+"=1"))
}
