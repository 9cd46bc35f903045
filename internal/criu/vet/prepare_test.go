package vet

import (
	"testing"

	core "github.com/checkpoint-restore/go-criu/v7/crit/images/criu-core"
)

// TestFill: what is prepared has messages in messages, and Prepare reads them.
func TestFill(t *testing.T) {
	entry := &core.CoreEntry{}
	fill(entry.ProtoReflect(), levelsOfMessages)
	if entry.GetThreadCore().GetCreds() == nil {
		t.Error("the credentials of a thread are not filled")
	}
	Prepare()
}
