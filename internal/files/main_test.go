package files

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/lab/workload/torture"
)

// TestMain runs the tests in a mount namespace of their own, so that no mount of theirs can stay behind.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == torture.Command {
		if err := torture.Run(os.Args[2:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	const marker = "GODWIT_FILES_TEST_NAMESPACE"
	if os.Getenv(marker) == "" {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			fmt.Fprintf(os.Stderr, "these tests need root, to make a mount namespace: %v\n", err)
			os.Exit(1)
		}
		err := syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), marker+"=1"))
		fmt.Fprintf(os.Stderr, "run the tests in a namespace: %v\n", err)
		os.Exit(1)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		fmt.Fprintf(os.Stderr, "make mounts private: %v\n", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
