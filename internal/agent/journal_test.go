package agent

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/engine"
)

// TestFilesOfAnEarlierBoot: after a reboot a file system is always in sync, with what the crash has left of the files.
func TestFilesOfAnEarlierBoot(t *testing.T) {
	a := newTestAgent(t)
	a.boot = "before"
	unsure, sure := a.moves.journal("0000000000000001", engine.Definition{}), a.moves.journal("0000000000000002", engine.Definition{})
	for _, journal := range []*journal{unsure, sure} {
		if err := journal.put([]byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.sync(sure); err != nil {
		t.Fatal(err)
	}
	a.boot = "after"
	if err := a.sync(unsure); status.Code(err) != codes.DataLoss {
		t.Errorf("error %v, want data loss", err)
	}
	if err := a.sync(sure); err != nil {
		t.Errorf("what was on disk before the reboot is not any more: %v", err)
	}
}
