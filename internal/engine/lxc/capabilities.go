package lxc

import (
	"context"
	"fmt"

	"github.com/godwit/godwit/internal/engine"
)

// Kind returns what Godwit has to know of the engine.
func Kind() engine.Kind {
	return engine.Kind{
		Facts: facts(),
		Open: func(config engine.Config) (engine.Engine, error) {
			if !Installed() {
				return nil, fmt.Errorf("LXC: %w: there is no lxc-checkpoint", engine.ErrAway)
			}
			return New(Config{StateDir: config.StateDir, RunDir: config.RunDir})
		},
		Readiness: func(ctx context.Context, _ string) (engine.Readiness, error) {
			return Readiness(ctx)
		},
	}
}

func facts() engine.Facts {
	return engine.Facts{Name: Name, Title: "LXC", Addresses: engine.PoolAddresses, ImagesAt: engine.NoImages}
}

// Capabilities are what else the engine can do.
func (e *Engine) Capabilities() engine.Capabilities {
	return engine.Capabilities{Facts: facts(), Protector: e, LeaveNoter: e}
}
