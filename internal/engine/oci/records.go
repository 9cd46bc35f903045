package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
)

// departureRecord is there from PrepareDump until the container is resumed or destroyed.
type departureRecord struct {
	Started time.Time           `json:"started"`
	First   checkpoint.Identity `json:"first"`
	Freezer string              `json:"freezer"` // directory of the cgroup by which they are frozen
	// what the engine is to do when it ends; while it leaves: nothing
	Restart json.RawMessage `json:"restart"`
	Boot    string          `json:"boot"` // of the machine, in which the container runs
	Leave   engine.Leave    `json:"leave,omitzero"`
	Name    string          `json:"name,omitempty"` // the engine's, before the copy was marked
	// Resumed: the container goes on here, and its engine may not know yet.
	Resumed bool `json:"resumed,omitempty"`
}

// arrivalRecord is there from the begin of an arrival until the container has been resumed and its
// engine knows it.
type arrivalRecord struct {
	Definition engine.Definition `json:"definition"`
	Restart    json.RawMessage   `json:"restart"`          // once it runs
	Volumes    []string          `json:"volumes"`          // that the arrival makes
	EngineID   string            `json:"own_id,omitempty"` // once the engine has made it
	Boot       string            `json:"boot"`             // of the machine, in which it arrives
	Began      time.Time         `json:"began"`
	Unmade     bool              `json:"unmade,omitempty"` // the engine reported that it created none
}

// save makes the directory of a record, too.
func save(path string, value any) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return durable.Save(path, value)
}

// arriving finds a container that arrives and has not been resumed: its engine may be busy with it,
// and is not asked.
func (e *Engine) arriving(id string) (engine.Container, bool, error) {
	was, is, err := e.arrivalOf(id)
	return engine.Container{Definition: was.Definition, State: engine.Arriving}, is, err
}

func (e *Engine) arrivalOf(id string) (was arrivalRecord, is bool, err error) {
	if !idPattern.MatchString(id) {
		return was, false, nil
	}
	err = durable.Load(e.arrivalPath(id), &was)
	if errors.Is(err, fs.ErrNotExist) || err == nil && durable.Exists(e.recordPath(id)) {
		return was, false, nil
	}
	return was, err == nil, err
}

// comingHere are all containers that arrive and have not been resumed, by their own ids.
func (e *Engine) comingHere() (map[string]engine.Container, error) {
	entries, err := os.ReadDir(e.records(""))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("records of containers of %s: %w", e.adapter.Title(), err)
	}
	coming := map[string]engine.Container{}
	for _, entry := range entries {
		was, is, err := e.arrivalOf(entry.Name())
		if err != nil {
			return nil, err
		}
		if is && was.EngineID != "" {
			coming[was.EngineID] = engine.Container{Definition: was.Definition, State: engine.Arriving}
		}
	}
	return coming, nil
}
