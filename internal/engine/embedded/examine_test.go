package embedded

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// mayReadLimits reports whether this process has CAP_SYS_RESOURCE, number 24 in
// include/uapi/linux/capability.h.
func mayReadLimits(t *testing.T) bool {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "CapEff:")
	line, _, _ := strings.Cut(after, "\n")
	own, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return own>>24&1 == 1
}

func TestExamineUsers(t *testing.T) {
	n := newTestNode(t)
	d := definition(t, "sleep", "60")
	d.User = "ann"
	n.start(d)
	problems, err := n.Examine(t.Context(), d.ID)
	if err != nil {
		t.Fatal(err)
	}
	want := 1
	if mayReadLimits(t) {
		want = 0
	}
	if len(problems) != want {
		t.Errorf("%+v", problems)
	}
}
