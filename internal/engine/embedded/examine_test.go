package embedded

import (
	"os"
	"strconv"
	"testing"
)

func TestExamineUsers(t *testing.T) {
	n := newTestNode(t)
	d := definition(t, "sleep", "60")
	d.User = "ann"
	n.start(d)
	problems, err := n.Examine(t.Context(), d.ID)
	if err != nil {
		t.Fatal(err)
	}
	own, err := strconv.ParseUint(statusField(os.Getpid(), "CapEff:"), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	want := 1
	if own>>capSysResource&1 == 1 {
		want = 0
	}
	if len(problems) != want {
		t.Errorf("%+v", problems)
	}
}
