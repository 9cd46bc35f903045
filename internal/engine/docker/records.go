package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/moby/moby/api/types/container"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/moving"
	"github.com/godwit/godwit/internal/kernel"
)

// departureRecord is there from Depart until the container is thawed or destroyed.
type departureRecord struct {
	Started time.Time               `json:"started"`
	First   moving.Identity         `json:"first"`
	Restart container.RestartPolicy `json:"restart"` // what Docker is to do when it ends; as long as it leaves: nothing
}

// arrivalRecord is there from the begin of an arrival until the container has been resumed and Docker knows it.
type arrivalRecord struct {
	Definition engine.Definition       `json:"definition"`
	Restart    container.RestartPolicy `json:"restart"`             // once it runs
	Volumes    []string                `json:"volumes"`             // that the arrival makes
	DockerID   string                  `json:"docker_id,omitempty"` // once Docker has made it
}

func save(path string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return kernel.WriteFileAtomic(path, data, 0o600)
}

// load reads what save has written. Error: fs.ErrNotExist.
func load(path string, value any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, value); err != nil {
		return fmt.Errorf("decode %s: %w", path, err)
	}
	return nil
}

// arriving finds a container that arrives and has not been resumed: Docker may be busy with it, and is not asked.
func (e *Engine) arriving(id string) (engine.Container, bool, error) {
	if !idPattern.MatchString(id) {
		return engine.Container{}, false, nil
	}
	var was arrivalRecord
	err := load(e.arrivalPath(id), &was)
	if errors.Is(err, fs.ErrNotExist) || err == nil && exists(e.recordPath(id)) {
		return engine.Container{}, false, nil
	}
	return engine.Container{Definition: was.Definition, State: engine.Arriving}, err == nil, err
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
