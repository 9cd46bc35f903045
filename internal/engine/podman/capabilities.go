package podman

import (
	"context"

	"github.com/godwit/godwit/internal/engine"
)

// Kind returns what Godwit has to know of the engine.
func Kind() engine.Kind {
	return engine.Kind{
		Facts: facts(),
		Open: func(config engine.Config) (engine.Engine, error) {
			return New(Config{StateDir: config.StateDir, RunDir: config.RunDir})
		},
		Readiness: func(ctx context.Context, _ string) (engine.Readiness, error) {
			return Readiness(ctx)
		},
	}
}

func facts() engine.Facts {
	return engine.Facts{
		Name: Name, Title: title, Addresses: engine.OwnedAddresses, ImagesAt: engine.OwnedImages,
		Volumes: true, Routed: true, Restarts: true, Marks: true, Setup: true,
	}
}

// Capabilities are what else the engine can do.
func (e *Engine) Capabilities() engine.Capabilities {
	can := e.Engine.Capabilities()
	can.Facts, can.Images, can.Networks, can.Sweeper = facts(), e.podman.images, e, e
	return can
}
