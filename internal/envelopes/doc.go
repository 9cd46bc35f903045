// Package envelopes translates between what the state machine says and what goes over the wire
// (api.Envelope), and checks and bounds what another node says there: messages, and offers of containers.
//
// The package makes no connection and asks nothing of the node: whether a container may come, and whether
// there is room for it, is decided elsewhere.
package envelopes
