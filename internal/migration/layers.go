package migration

import (
	"fmt"
	"strings"
)

// Layers describes how the layers of an image came to a node that needs them.
type Layers struct {
	Count int           `json:"count"`
	Here  int           `json:"here"` // layers that the node already had
	Taken []LayersTaken `json:"taken,omitempty"`
}

// LayersTaken are layers that came from one origin.
type LayersTaken struct {
	Kind   string `json:"kind"` // source, node or registry
	From   string `json:"from"` // name of the origin
	Layers int    `json:"layers"`
	Partly int    `json:"partly,omitempty"` // layers of which only the part that others lack came
	Bytes  int64  `json:"bytes"`            // transferred, compressed as they were
	Error  string `json:"error,omitempty"`  // why no more layers were taken from there
}

// Bytes returns the bytes transferred from all origins.
func (l Layers) Bytes() (bytes int64) {
	for _, taken := range l.Taken {
		bytes += taken.Bytes
	}
	return bytes
}

// String summarises the layers in a line.
func (l Layers) String() string {
	parts := []string{fmt.Sprintf("%d of %d layers were there", l.Here, l.Count)}
	for _, taken := range l.Taken {
		part := fmt.Sprintf("%d came from %s %s, %d bytes", taken.Layers, taken.Kind, taken.From, taken.Bytes)
		if taken.Partly > 0 {
			part += fmt.Sprintf(", of %d only what is not in others", taken.Partly)
		}
		if taken.Error != "" {
			part += " (" + taken.Error + ")"
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "; ")
}
