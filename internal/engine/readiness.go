package engine

// Readiness is what an engine of this node lacks to take containers that move here.
type Readiness struct {
	Title    string // the engine's name for people
	Version  string
	Problems []Problem
}
