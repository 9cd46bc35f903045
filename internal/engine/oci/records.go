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

// departureRecord exists from PrepareDump until the container is resumed or destroyed.
type departureRecord struct {
	Started time.Time           `json:"started"`
	First   checkpoint.Identity `json:"first"`
	Freezer string              `json:"freezer"` // directory of the cgroup by which they are frozen
	// what the engine is to do when the container ends; while it leaves: nothing
	Restart json.RawMessage `json:"restart"`
	Boot    string          `json:"boot"` // of the machine on which the container runs
	Leave   engine.Leave    `json:"leave,omitzero"`
	Name    string          `json:"name,omitempty"` // the engine's name for it, before the copy was marked
	// Resumed: the container continues here, and its engine may not know that yet.
	Resumed bool `json:"resumed,omitempty"`
}

// arrivalRecord exists from the beginning of an arrival until the container has been resumed and its engine
// knows it.
type arrivalRecord struct {
	Definition engine.Definition `json:"definition"`
	Restart    json.RawMessage   `json:"restart"`          // once the container runs
	Volumes    []string          `json:"volumes"`          // made by the arrival
	EngineID   string            `json:"own_id,omitempty"` // once the engine has made the container
	Boot       string            `json:"boot"`             // of the machine, during the arrival
	Began      time.Time         `json:"began"`
	Unmade     bool              `json:"unmade,omitempty"` // the engine reported that it created no container
}

// save also makes the record's directory.
func save(path string, value any) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return durable.Save(path, value)
}

// arriving finds a container that is arriving and has not been resumed. It does not query the engine, which
// may be busy with the container.
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

// comingHere returns all containers that are arriving and have not been resumed, by the engine's IDs.
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
