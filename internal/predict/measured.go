package predict

import (
	"time"

	"github.com/godwit/godwit/internal/migration"
)

// Measured is what is known of a container that runs.
type Measured struct {
	Name  string    `json:"container"`
	ID    string    `json:"container_id"`
	Node  string    `json:"node"`
	At    time.Time `json:"at"`
	State string    `json:"state,omitempty"` // why it is not up to date; empty: it is
	// Tracking is how it is known what the container writes.
	Tracking string `json:"tracking"`
	// CompressBytesPerSecond is how fast its pages were compressed here, on one core.
	CompressBytesPerSecond float64 `json:"compress_bytes_per_second"`
	Container
}

// Plan is the answer to: would it work, what would it cost, and which mode is the best.
type Plan struct {
	migration.Plan
	Link        Link         `json:"link"`
	Measured    Measured     `json:"measured"`
	Predictions []Prediction `json:"predictions"`
	Choice      Choice       `json:"choice"`
	// what would make it better than what was chosen, and by how much
	Better []string `json:"better"`
}
