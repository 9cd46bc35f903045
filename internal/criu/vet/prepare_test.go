package vet

import (
	"testing"

	core "github.com/checkpoint-restore/go-criu/v7/crit/images/criu-core"
)

// TestFill checks that filled messages contain nested messages, and that Prepare reads them.
func TestFill(t *testing.T) {
	entry := &core.CoreEntry{}
	fill(entry.ProtoReflect(), levelsOfMessages)
	if entry.GetThreadCore().GetCreds() == nil {
		t.Error("the credentials of a thread are not filled")
	}
	Prepare()
}
