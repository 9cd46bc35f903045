package predict

import (
	"time"

	"github.com/godwit/godwit/internal/migration"
)

// Measured holds the measurements of a running container.
type Measured struct {
	Name  string    `json:"container"`
	ID    string    `json:"container_id"`
	Node  string    `json:"node"`
	At    time.Time `json:"at"`
	State string    `json:"state,omitempty"` // why it is not up to date; empty: it is
	// Tracking is how writes of the container are observed.
	Tracking string `json:"tracking"`
	// CompressBytesPerSecond is how fast the container's pages were compressed here, on one core.
	CompressBytesPerSecond float64 `json:"compress_bytes_per_second"`
	Container
}

// Plan answers whether a migration would work, what it would cost, and which mode is the best.
type Plan struct {
	migration.Plan
	Link        Link         `json:"link"`
	Measured    Measured     `json:"measured"`
	Predictions []Prediction `json:"predictions"`
	Choice      Choice       `json:"choice"`
	// changes that would improve on the chosen mode, and by how much
	Better []string `json:"better"`
}
