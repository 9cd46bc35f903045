package examine

import (
	"os/exec"
	"testing"
)

// TestReplaceMultipathEnded lists a process that has ended, such as that of a short exec.
func TestReplaceMultipathEnded(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	ended := func() ([]int, error) { return []int{cmd.Process.Pid}, nil }
	if err := ReplaceMultipath(t.Context(), ended); err != nil {
		t.Error(err)
	}
}
