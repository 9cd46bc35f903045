package podman

import (
	"testing"

	"github.com/godwit/godwit/internal/engine"
)

// TestLogStays checks that a log that cannot be moved is named by its driver.
func TestLogStays(t *testing.T) {
	for driver, want := range map[string]string{"journald": "journald", logDriver: "", "json-file": "",
		"none": "", "": ""} {
		d := valid(t, func(_ *engine.Definition, x *extra) { x.Host.LogConfig.Type = driver })
		if got := (&adapter{}).LogStays(d); got != want {
			t.Errorf("log driver %q: %q stays", driver, got)
		}
	}
	if got := (&adapter{}).LogStays(engine.Definition{}); got != "" {
		t.Errorf("a definition that says nothing: %q stays", got)
	}
}
