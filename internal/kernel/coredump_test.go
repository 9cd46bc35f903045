package kernel

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

const envNoCoreDump = "GODWIT_TEST_NO_CORE_DUMP"

// TestNoCoreDump runs this test again in a separate process, because other tests of this package must be
// able to examine this one: programs that it starts may be dumped again.
func TestNoCoreDump(t *testing.T) {
	switch os.Getenv(envNoCoreDump) {
	case "":
		rerun(t, "parent")
	case "parent":
		if err := NoCoreDump(); err != nil {
			t.Fatal(err)
		}
		wantDumpable(t, 0)
		if _, err := os.ReadFile("/proc/self/maps"); err != nil {
			t.Errorf("it cannot look at itself: %v", err)
		}
		rerun(t, "child")
	case "child":
		wantDumpable(t, 1)
	}
}

// TestLimitCoreDump limits another process and not this one.
func TestLimitCoreDump(t *testing.T) {
	c := exec.Command("sleep", "60")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	}()
	var before, after, its unix.Rlimit
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(unix.Getrlimit(unix.RLIMIT_CORE, &before))
	must(LimitCoreDump(c.Process.Pid))
	must(unix.Getrlimit(unix.RLIMIT_CORE, &after))
	must(unix.Prlimit(c.Process.Pid, unix.RLIMIT_CORE, nil, &its))
	if its.Cur != 0 || its.Max != before.Max || after != before {
		t.Errorf("its limit is %+v, and this process's %+v, which was %+v", its, after, before)
	}
}

func rerun(t *testing.T, as string) {
	t.Helper()
	c := exec.Command("/proc/self/exe", "-test.run", "^TestNoCoreDump$")
	c.Env = append(os.Environ(), envNoCoreDump+"="+as)
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", as, err, out)
	}
}

func wantDumpable(t *testing.T, want int) {
	t.Helper()
	got, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil || got != want {
		t.Errorf("PR_GET_DUMPABLE is %d, %v, want %d", got, err, want)
	}
}
