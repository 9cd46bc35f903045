package agent

import (
	"testing"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/volumes"
)

// TestNewInodes: nobody looks for open files for a user who knows better.
func TestNewInodes(t *testing.T) {
	found, err := (&Agent{}).examineInodes(t.Context(), engine.Definition{ID: "one"}, volumes.Chosen{},
		migration.Settings{NewInodes: true})
	if err != nil || len(found) > 0 {
		t.Errorf("%+v, %v", found, err)
	}
}
