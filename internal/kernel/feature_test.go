package kernel

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// needed are the features without which nothing can be moved; the others are only probed.
var needed = []string{"checkpoint and restore", "TCP repair mode", "socket diagnosis for TCP", "pidfd_getfd",
	"cgroup freezer", "overlayfs"}

func TestProbes(t *testing.T) {
	for _, f := range Features() {
		err := f.Probe()
		t.Logf("%s: %v", f.Name, err)
		if err != nil && !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s could not be found out: %v", f.Name, err)
		}
		if err != nil && !strings.Contains(err.Error(), f.Minimum) {
			t.Errorf("%s: %q does not name %s", f.Name, err, f.Minimum)
		}
		for _, n := range needed {
			if f.Name == n && err != nil {
				t.Errorf("the machine that runs the tests must have %v", err)
			}
		}
	}
}

// TestAnswers checks that a missing privilege does not count as an answer of the kernel.
func TestAnswers(t *testing.T) {
	answer := func(err error) error {
		return Feature{Name: "x", Minimum: "Linux 9.9", probe: func() error { return err }}.Probe()
	}
	if err := answer(nil); err != nil {
		t.Errorf("there: %v", err)
	}
	if err := answer(unix.ENOSYS); !errors.Is(err, ErrUnsupported) ||
		!strings.Contains(err.Error(), "Linux 9.9") {
		t.Errorf("missing: %v", err)
	}
	if err := answer(unix.EPERM); err == nil || errors.Is(err, ErrUnsupported) {
		t.Errorf("not to be found out: %v", err)
	}
}
