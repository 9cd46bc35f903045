package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
)

// idLabel is the label of a container that has moved, for people and for who looks for what a crash has left. Its value is the
// id that all nodes know it by. Images that are made of such a container have it too, and with them containers that are others,
// so what counts is what is remembered here.
const idLabel = "io.godwit.id"

// remembered is where it is written down which of Docker's containers one is that has come here, as long as it is here.
func (e *Engine) remembered(id string) string {
	return filepath.Join(e.config.StateDir, "engines", Name+"-ids", id)
}

func (e *Engine) remember(id, dockerID string) error { return save(e.remembered(id), dockerID) }

// identity is the id that all nodes know a container by.
func (e *Engine) identity(dockerID string, labels map[string]string) string {
	first := labels[idLabel]
	if !idPattern.MatchString(first) {
		return dockerID
	}
	if own, err := e.dockerID(first); err == nil && own == dockerID {
		return first
	}
	return dockerID
}

// dockerID is Docker's own id of a container.
func (e *Engine) dockerID(id string) (string, error) {
	var own string
	err := load(e.remembered(id), &own)
	if errors.Is(err, fs.ErrNotExist) {
		return id, nil // it was started here
	}
	return own, err
}

// madeFor is Docker's own id of a container that was made for an arrival; "" if there is none. An agent that was killed may not
// have come to write it down. It had then not started the container, whatever others have started that have the label.
func (e *Engine) madeFor(ctx context.Context, id string, was arrivalRecord) (string, error) {
	if was.DockerID != "" {
		return was.DockerID, nil
	}
	filters := make(client.Filters).Add("label", idLabel+"="+id)
	labelled, err := e.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filters})
	if err != nil {
		return "", fmt.Errorf("look for container %.12s in Docker: %w", id, err)
	}
	for _, item := range labelled.Items {
		if item.State == container.StateCreated && slices.Contains(item.Names, "/"+was.Definition.Name) {
			return item.ID, nil
		}
	}
	return "", nil
}
