package oci

import (
	"fmt"

	"github.com/godwit/godwit/internal/engine"
)

// LogStayer is an adapter whose engine may keep a container's log in a place from which it cannot be moved.
type LogStayer interface {
	// LogStays returns the name of the log's keeper if the log stays. It returns "" if the log moves or
	// there is none.
	LogStays(d engine.Definition) string
}

// LeavesBehind implements engine.Leaver.
func (ds *departures) LeavesBehind(d engine.Definition) []string {
	stayer, is := ds.adapter.(LogStayer)
	if !is {
		return nil
	}
	driver := stayer.LogStays(d)
	if driver == "" {
		return nil
	}
	return []string{fmt.Sprintf("what %s has logged of the container stays on the source: log driver %s "+
		"keeps it there; "+
		"the target logs what comes after the move", ds.adapter.Title(), driver)}
}
