package fetch

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain runs the tests in a mount namespace of their own: small file systems are mounted, and nothing of it can stay behind.
func TestMain(m *testing.M) {
	const marker = "GODWIT_FETCH_TEST_NAMESPACE"
	if os.Getenv(marker) == "" {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			fmt.Fprintf(os.Stderr, "these tests need root, to make a namespace: %v\n", err)
			os.Exit(1)
		}
		err := syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), marker+"=1"))
		fmt.Fprintf(os.Stderr, "run the tests in a namespace: %v\n", err)
		os.Exit(1)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		fmt.Fprintf(os.Stderr, "prepare the namespace: %v\n", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
