package engine

import "time"

// Leave is why a container leaves. Engines keep it with what they record of a departure, and give it back unread: a node that has
// lost the journal of a migration learns from it whose the frozen copy is, and whom to ask about the other one.
type Leave struct {
	Migration string    `json:"migration,omitempty"`
	Target    string    `json:"target,omitempty"` // name of the node
	Mode      string    `json:"mode,omitempty"`   // of the migration
	Started   time.Time `json:"started,omitzero"` // the migration
	// Incarnation of the target's state that took the reservation; empty: it was not said.
	Incarnation string `json:"incarnation,omitempty"`
	// Stay are the volumes that stay when the copy is destroyed, by Volume.Key.
	Stay []string `json:"stay,omitempty"`
}
