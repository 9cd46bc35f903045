package hold

// Destination says where an address is: in a container here, or at a peer.
type Destination struct {
	Container string // attached to this node, by its ID
	Peer      string // by its name
}

// String describes the destination.
func (d Destination) String() string {
	if d.Container != "" {
		return "container " + d.Container + " here"
	}
	return "node " + d.Peer
}
