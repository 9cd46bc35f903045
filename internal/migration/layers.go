package migration

import (
	"fmt"
	"strings"
)

// Layers tells what became of the layers of an image at a node that has a use for it.
type Layers struct {
	Count int           `json:"count"`
	Here  int           `json:"here"` // that it had
	Taken []LayersTaken `json:"taken,omitempty"`
}

// LayersTaken are layers that came from one place.
type LayersTaken struct {
	Kind   string `json:"kind"` // source, node or registry
	From   string `json:"from"` // its name
	Layers int    `json:"layers"`
	Partly int    `json:"partly,omitempty"` // layers of which only what is not in others came
	Bytes  int64  `json:"bytes"`            // that came, compressed as they were
	Error  string `json:"error,omitempty"`  // why no more was taken from there
}

// Bytes is what came, from wherever.
func (l Layers) Bytes() (bytes int64) {
	for _, taken := range l.Taken {
		bytes += taken.Bytes
	}
	return bytes
}

// String tells it in a line.
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
