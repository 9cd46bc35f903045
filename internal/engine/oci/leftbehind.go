package oci

import (
	"fmt"

	"github.com/godwit/godwit/internal/engine"
)

// LogStayer is an adapter whose engine may keep what it has logged of a container where it cannot
// be taken from.
type LogStayer interface {
	// LogStays is the name of what keeps the log of a container that stays; "": the log moves, or
	// there is none.
	LogStays(d engine.Definition) string
}

// LeavesBehind implements engine.Leaver.
func (e *Engine) LeavesBehind(d engine.Definition) []string {
	stayer, is := e.adapter.(LogStayer)
	if !is {
		return nil
	}
	driver := stayer.LogStays(d)
	if driver == "" {
		return nil
	}
	return []string{fmt.Sprintf("what %s has logged of the container stays on the source: log driver %s "+
		"keeps it there; "+
		"the target logs what comes after the move", e.adapter.Title(), driver)}
}
