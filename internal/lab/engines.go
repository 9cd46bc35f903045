package lab

// Engines are the container engines of a lab's nodes: each node has its own, with its own storage.
type Engines struct{ lab *Lab }

// Engines returns the engines of the lab's nodes. None runs before it is started or prepared.
func (l *Lab) Engines() Engines { return Engines{l} }
