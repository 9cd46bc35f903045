package engine

import "time"

// Leave identifies the migration that moves a container away. An engine stores it with its record of the
// departure and returns it unread. A node that has lost the journal of a migration learns from it which
// migration froze the copy, and which node to ask.
type Leave struct {
	Migration string    `json:"migration,omitempty"`
	Target    string    `json:"target,omitempty"` // name of the node
	Mode      string    `json:"mode,omitempty"`   // of the migration
	Started   time.Time `json:"started,omitzero"` // the migration
	// Incarnation of the target's state that took the reservation; empty: not reported.
	Incarnation string `json:"incarnation,omitempty"`
	// Stay lists the volumes that stay when the copy is destroyed, by Volume.Key.
	Stay []string `json:"stay,omitempty"`
}
