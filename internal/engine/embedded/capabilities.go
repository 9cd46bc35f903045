package embedded

import "github.com/godwit/godwit/internal/engine"

// Name of the engine.
const Name = "embedded"

// Kind returns what Godwit has to know of the engine. The agent opens the engine itself, with the images.
func Kind() engine.Kind { return engine.Kind{Facts: facts()} }

func facts() engine.Facts {
	return engine.Facts{
		Name: Name, Title: "Godwit", Anew: true, Addresses: engine.PoolAddresses,
		ImagesAt: engine.AgentImages, Volumes: true, Restarts: true,
	}
}

// Capabilities are what else the engine can do.
func (e *Engine) Capabilities() engine.Capabilities {
	return engine.Capabilities{Facts: facts(), Restarter: e, Protector: e, LeaveNoter: e}
}
