package engine

import "context"

// Kind is an engine that Godwit knows. Each engine's package returns one, and package engines lists them.
type Kind struct {
	Facts
	// Open opens the engine on this node, installed or not; ErrAway: it matters only once it is installed
	// and the agent restarts. nil: the agent opens it in its own way.
	Open func(Config) (Engine, error)
	// Readiness says what the engine of this machine lacks to receive containers; program is this program.
	// nil: it is part of Godwit. Error: ErrAway.
	Readiness func(ctx context.Context, program string) (Readiness, error)
}

// Config has the directories of the agent in which an engine keeps its records.
type Config struct {
	StateDir string
	RunDir   string
}
