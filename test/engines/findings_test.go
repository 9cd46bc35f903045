package engines

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// envCompatibility names a directory for the conformance suite's findings; compatibility makes a table of
// them.
const envCompatibility = "GODWIT_COMPATIBILITY"

// findings are the suite's findings about an engine.
type findings struct {
	Engine  string `json:"engine"`
	Version string `json:"version"`
	Kernel  string `json:"kernel"`
	// by mode, whether everything was unchanged after each move
	Modes map[string]bool `json:"modes"`
	// by mode, whether clients' connections survived; empty: the engine's containers have none that could
	Kept       map[string]bool   `json:"connections"`
	Properties map[string]string `json:"properties"` // result for each possible property
}

// The possible results for a property.
const (
	propertyMoves   = "moves"
	propertyRefused = "refused"
	propertyFails   = "fails"
	propertyUnable  = "not tried: no " // with what the machine, or the engine's version, lacks
)

func newFindings(t *testing.T, s subject) *findings {
	t.Helper()
	return &findings{
		Engine: s.name(), Version: s.version(t), Kernel: in(t, "a", "uname", "-r"),
		Modes: map[string]bool{}, Kept: map[string]bool{}, Properties: map[string]string{},
	}
}

// note records for a mode whether a result was the same each time.
func note(all map[string]bool, mode string, so bool) {
	before, known := all[mode]
	all[mode] = so && (before || !known)
}

func (f *findings) moved(mode string, same bool) { note(f.Modes, mode, same) }

func (f *findings) kept(mode string, all bool) { note(f.Kept, mode, all) }

func (f *findings) has(all []property, as bool) {
	for _, p := range all {
		f.Properties[p.name] = propertyFails
		if as {
			f.Properties[p.name] = propertyMoves
		}
	}
}

func (f *findings) refused(p property) { f.Properties[p.name] = propertyRefused }

func (f *findings) unable(p property) { f.Properties[p.name] = propertyUnable + p.unable }

// write writes the findings for the table, if requested.
func (f *findings) write(t *testing.T) {
	t.Helper()
	directory := os.Getenv(envCompatibility)
	if directory == "" {
		return
	}
	data, err := json.MarshalIndent(f, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Join(directory, f.Engine+"-"+f.Version+".json"), data, 0o644)
	}
	if err != nil {
		t.Error(err)
	}
}
